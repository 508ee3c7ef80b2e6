"""The sending side of a connection."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import math
import socket
import struct
import sys
import termios
from collections.abc import Callable
from enum import Enum, auto
from typing import cast

from fastovms.config import HttpConfig

logger = logging.getLogger(__name__)


NEVER = math.inf


class Deadline:
    """A deadline that is moved often, nearly always to a later time.

    Moving it does not change the timer, which may fire early and is then set again. A connection
    with many requests therefore sets few timers.
    """

    __slots__ = ("_callback", "_loop", "_timer", "_timer_at", "_when")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback: Callable[[], None] | None = callback
        self._when = NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER

    def set(self, when: float) -> None:
        """Moves the deadline to `when`, in seconds of the loop's clock."""
        self._when = when
        if when < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = when
            self._timer = self._loop.call_at(when, self._on_timer)

    def clear(self) -> None:
        """Clears the deadline; `set` sets a new one."""
        self._when = NEVER

    def close(self) -> None:
        """Clears the deadline permanently and drops the callback."""
        self._when = NEVER
        self._callback = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = NEVER
        when = self._when
        if when > self._loop.time():
            if when != NEVER:
                self.set(when)
        elif self._callback is not None:
            self._when = NEVER
            self._callback()


_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

# Where the kernel's struct tcp_info has tcpi_bytes_acked, a u64.
_BYTES_ACKED = slice(120, 128)

_INT = struct.Struct("i")

# Seconds that a TLS connection stays open for its last bytes to arrive.
_TLS_FAREWELL = 0.2

# uvloop's own low-water mark would be 16 bytes.
_HIGH_WATER = 64 * 1024
_LOW_WATER = 16 * 1024


class WireState(Enum):
    """The states of the sending side.

    OPEN: answers may be sent. LINGERING: the last answer was sent; waiting for the client to close
    (RFC 9112 9.6). CLOSING: waiting for the transport. CLOSED: the connection has ended.
    """

    OPEN = auto()
    LINGERING = auto()
    CLOSING = auto()
    CLOSED = auto()


class Outbox:
    """Writes the answers of one pass of the event loop together, at its end.

    Separate writes would wake each client in between, which costs cache misses and, on virtual
    machines, interrupts. Answers are never delayed beyond the current pass.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wires: list[Wire] = []

    def add(self, wire: Wire) -> None:
        """Queues a connection whose answers are written at the end of this pass."""
        if not self._wires:
            self._loop.call_soon(self._flush)
        self._wires.append(wire)

    def _flush(self) -> None:
        wires, self._wires = self._wires, []
        for wire in wires:
            wire.flush()


class Wire:
    """The sending side of a connection; wraps its transport.

    Attributes:
        paused: whether the write buffer is full because the client reads slowly.
        num_written: the total bytes written over the connection's lifetime.
    """

    __slots__ = (
        "_config",
        "_deadline",
        "_loop",
        "_num_taken",
        "_outbox",
        "_transport",
        "_unsent",
        "client",
        "num_written",
        "paused",
        "state",
    )

    def __init__(self, config: HttpConfig, loop: asyncio.AbstractEventLoop, outbox: Outbox) -> None:
        self._config = config
        self._loop = loop
        self._outbox = outbox
        self._transport: asyncio.Transport | None = None
        self._deadline = Deadline(loop, self._expire)
        self._unsent = b""
        self._num_taken = 0
        self.num_written = 0
        self.paused = False
        self.state = WireState.OPEN
        self.client = ""

    def attach(self, transport: asyncio.BaseTransport) -> None:
        """Sets the transport once the connection is open."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER, low=_LOW_WATER)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            host = f"[{peer[0]}]" if ":" in peer[0] else peer[0]
            self.client = f"{host}:{peer[1]}"

    def detach(self) -> None:
        """Records that the connection is lost."""
        self.state = WireState.CLOSED
        self._transport = None
        self._unsent = b""
        self._deadline.close()

    # Reading

    def pause_reading(self) -> None:
        """Stops reading until `resume_reading`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resumes reading after `pause_reading`, if the connection is still open."""
        transport = self._transport
        if transport is not None and not transport.is_closing() and not transport.is_reading():
            transport.resume_reading()

    # Sending

    @property
    def writable(self) -> bool:
        """Whether the connection is open and its write buffer is not full."""
        return not self.paused and self.state is WireState.OPEN

    @property
    def buffered(self) -> int:
        """The number of bytes that the kernel has not accepted yet."""
        if self._transport is None:
            return 0
        return len(self._unsent) + self._transport.get_write_buffer_size()

    @property
    def has_unread(self) -> bool:
        """Returns whether the kernel holds unread bytes of the client."""
        return self.state is _OPEN and bool(self._num_queued(termios.FIONREAD))

    def post(self, data: bytes) -> None:
        """Sends an answer at the end of this pass of the loop, or at once if it is large."""
        if self.state is not _OPEN:
            return
        self.num_written += len(data)
        if self._unsent:
            self._unsent += data
        else:
            self._unsent = data
            self._outbox.add(self)
        if len(self._unsent) > _HIGH_WATER:
            self.flush()

    def write(self, data: bytes) -> None:
        """Sends a piece of a stream at once, or cuts the connection if the client has not read too
        much of the earlier data."""
        if self.state is not _OPEN or self._transport is None:
            return
        if self._unsent:
            self.flush()
        self.num_written += len(data)
        self._transport.write(data)
        if self.paused and self.buffered > self._config.max_write_buffer:
            logger.warning(
                "connection of %s: closed, because the client reads its stream too slowly",
                self.client,
            )
            self.cut(reset=True)

    def flush(self) -> None:
        """Writes the queued answers now."""
        data = self._unsent
        if data and self._transport is not None:
            self._unsent = b""
            self._transport.write(data)

    # Back-pressure

    def pause(self) -> None:
        """Records that the write buffer is full; implements `asyncio.Protocol.pause_writing`."""
        self.paused = True
        if self.state is _OPEN:
            self._wait_for_reader(self._config.write_timeout)

    def resume(self) -> None:
        """Records that the write buffer has space again; implements
        `asyncio.Protocol.resume_writing`."""
        self.paused = False
        if self.state is _OPEN:
            self._deadline.clear()

    def _wait_for_reader(self, timeout: float) -> None:
        self._num_taken = self._count_taken()
        self._deadline.set(self._loop.time() + timeout)

    def _has_progress(self) -> bool:
        return self._count_taken() > self._num_taken

    def _count_taken(self) -> int:
        """Returns a number that grows as the client receives data: for TCP, the acknowledged bytes.
        The kernel's buffer alone would not show progress, because it may hold megabytes on a slow
        line, and TLS has its own buffer."""
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        if sock is None or sock.family == socket.AF_UNIX:
            return self.num_written - self.buffered
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.stop)
        return int.from_bytes(info[_BYTES_ACKED], sys.byteorder)

    # Ends

    @property
    def can_half_close(self) -> bool:
        """Whether the sending side can be closed separately, which TLS does not support."""
        return self._transport is not None and self._transport.can_write_eof()

    def finish(self, *, linger: bool) -> None:
        """Ends the connection after the written data. With `linger` the client may still be
        sending, and closing at once would reset the connection before it has the answer."""
        if self.state is not _OPEN or self._transport is None:
            return
        self.flush()
        if not linger:
            self._close()
            return
        self.state = WireState.LINGERING
        if self.can_half_close:
            self._transport.write_eof()
        self._deadline.set(self._loop.time() + self._config.linger_timeout)

    def finish_idle(self) -> None:
        """Ends an idle connection. The write side is shut down at once, so that a client about to
        reuse the connection notices before it sends a request that would be lost. With TLS, its own
        closing message must come first."""
        transport = self._transport
        if self.state is _OPEN and transport is not None and not self.buffered:
            sock = transport.get_extra_info("socket")
            if sock is not None and transport.get_extra_info("ssl_object") is None:
                # uvloop does not allow a shutdown of the transport's own socket.
                with contextlib.suppress(OSError), sock.dup() as own:
                    # Raises if the client has already closed the connection.
                    own.shutdown(socket.SHUT_WR)
        self.finish(linger=False)

    def cut(self, *, reset: bool) -> None:
        """Ends the connection now; written data is lost if it is reset, otherwise flushed."""
        if self._transport is None:
            return
        if not reset:
            self.finish(linger=False)
            return
        self.state = WireState.CLOSING
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    def on_eof(self) -> None:
        """Records that the client has closed its sending side; asyncio closes the transport
        next."""
        if self.state is not WireState.CLOSED:
            self.flush()
            self.state = WireState.CLOSING
            self._wait_for_reader(self._config.close_timeout)

    def _close(self) -> None:
        """Closes the transport within a deadline, because closing never completes if the client
        does not read."""
        assert self._transport is not None
        self.state = WireState.CLOSING
        self._wait_for_reader(self._config.close_timeout)
        self._transport.close()
        if self._transport.get_extra_info("ssl_object") is not None:
            self._loop.call_later(_TLS_FAREWELL, self._end_if_taken)

    def _end_if_taken(self) -> bool:
        """Ends the connection if the client has received everything, and returns whether it has.
        TLS would otherwise wait for the client to close too, which RFC 8446 6.1 does not
        require."""
        if self._transport is None or self.state is not WireState.CLOSING or self.buffered:
            return False
        if self._num_queued(termios.TIOCOUTQ) != 0:
            return False
        self._transport.abort()
        return True

    def _num_queued(self, request: int) -> int | None:
        """Returns the bytes in a queue of the kernel, read by the ioctl `request`; None =
        unknown."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is None:
            return None
        (number,) = _INT.unpack(fcntl.ioctl(sock.fileno(), request, bytes(_INT.size)))
        return int(number)

    def _expire(self) -> None:
        if self.state is WireState.LINGERING:
            self._close()
        elif self.state is WireState.CLOSING:
            if self._end_if_taken():
                return
            if self._has_progress():
                self._wait_for_reader(self._config.close_timeout)
            else:
                self.cut(reset=True)
        elif self.paused:
            if self._has_progress():
                self._wait_for_reader(self._config.write_timeout)
            else:
                logger.warning(
                    "connection of %s: closed, because the client stopped reading", self.client
                )
                self.cut(reset=True)


_OPEN = WireState.OPEN  # a look-up in an Enum class is slow
