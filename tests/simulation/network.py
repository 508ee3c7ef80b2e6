"""Connections in memory that split, coalesce, delay, fill up, half-close and reset."""

from __future__ import annotations

import asyncio
import random
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tests.simulation.loop import SimLoop
from tests.simulation.world import World

MAX_READ: Final = 256 * 1024

_MOST_PIECES: Final = 100
"""Into about how many pieces data are split that are sent at once: each takes time."""


@dataclass(frozen=True)
class Line:
    """How a network behaves.

    Attributes:
        delay: the least and the most seconds that data travel.
        piece: the most bytes that travel together.
        window: the bytes that may be on their way and unread.
    """

    delay: tuple[float, float]
    piece: int
    window: int

    @classmethod
    def choose(cls, chance: random.Random) -> Line:
        return cls(
            chance.choice(((0.0, 0.0), (1e-4, 1e-3), (1e-3, 0.2))),
            chance.choice((3, 40, 300, 1500, 65536)),
            chance.choice((300, 4096, 65536, 1 << 20)),
        )


FAST: Final = Line((0.0, 0.0), 65536, 65536)


class Flow:
    """Bytes in one direction.

    Attributes:
        on_room: called when the sender's system has passed something on.
        on_data: called when something has come.
        is_ended: whether the receiver has been told of the end, behind the last data.
    """

    def __init__(self, world: World, line: Line) -> None:
        self._world = world
        self._line = line
        self._num_travelling = 0
        self._last_at = 0.0
        self._ends = False
        self._unsent = b""
        self._unread = b""
        self.is_ended = False
        self.is_cut = False
        self.on_room: Callable[[], None] = lambda: None
        self.on_data: Callable[[], None] = lambda: None

    @property
    def num_unsent(self) -> int:
        """The bytes that the sender's system holds."""
        return len(self._unsent)

    @property
    def num_unread(self) -> int:
        return len(self._unread)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def has_unread(self) -> bool:
        """Whether the receiver's system holds bytes."""
        return bool(self._unread)

    @property
    def num_queued(self) -> int:
        """The bytes that have not come to the receiver's system."""
        return self.num_unsent + self._num_travelling

    def drop(self) -> None:
        """Drops what was not sent."""
        self._unsent = b""

    def send(self, data: bytes) -> None:
        self._unsent += data
        self.pump()

    def end(self) -> None:
        self._ends = True
        self.pump()

    def cut(self) -> None:
        """Drops all data."""
        self.is_cut = True
        self.drop()

    def take(self, most: int = MAX_READ) -> bytes:
        data, self._unread = self._unread[:most], self._unread[most:]
        self.pump()
        return data

    def pump(self) -> None:
        has_moved = False
        while self.has_unsent and self._num_travelling + self.num_unread < self._line.window:
            room = self._line.window - self._num_travelling - self.num_unread
            piece, size = self._next_piece(room)
            self._num_travelling += size
            self._travel(partial(self._arrive, piece, size))
            has_moved = True
        if self._ends and not self.has_unsent:
            self._ends = False
            self._travel(self._arrive_end)
        if has_moved:
            self.on_room()

    def _next_piece(self, room: int) -> tuple[bytes, int]:
        """Returns the next bytes that travel together, and the number for which they count."""
        line = self._line
        most = max(line.piece, len(self._unsent) // _MOST_PIECES)
        size = self._world.chance.randint(1, most) if most < 60000 else most
        size = min(size, room)
        piece, self._unsent = self._unsent[:size], self._unsent[size:]
        return piece, len(piece)

    def _keep(self, piece: bytes, size: int) -> None:
        self._unread += piece

    def _travel(self, arrive: Callable[[], None]) -> None:
        delay = self._world.chance.uniform(*self._line.delay)
        self._last_at = max(self._last_at, self._world.now + delay)
        self._world.at(self._last_at, arrive)

    def _arrive(self, piece: bytes, size: int) -> None:
        self._num_travelling -= size
        if not self.is_cut:
            self._keep(piece, size)
            self.on_data()

    def _arrive_end(self) -> None:
        if not self.is_cut:
            self.is_ended = True
            self.on_data()


class ServerTransport(asyncio.Transport):
    """The server's end of a connection."""

    def __init__(self, link: Link, loop: SimLoop, protocol: asyncio.Protocol | SSLProtocol) -> None:
        super().__init__()
        self._link = link
        self._loop = loop
        self._protocol = protocol
        self._high, self._low = 65536, 16384
        self._is_paused = self._is_closing = self._is_lost = False
        self._reads = True
        self._is_queued = False
        self._eof_told = False
        link.up.on_data = self._on_data
        link.down.on_room = self._on_room
        protocol.connection_made(self)

    # The network's side; each call is made in a pass of the loop

    def _on_data(self) -> None:
        if not self._is_queued and self._reads and not self._is_lost:
            self._is_queued = True
            self._loop.inject(self._read)

    def _read(self) -> None:
        self._is_queued = False
        if self._is_lost or self._is_closing or not self._reads:
            return
        up = self._link.up
        if up.has_unread:
            self._receive(up.take())
            if up.has_unread or up.is_ended:
                self._on_data()
        elif up.is_ended and not self._eof_told:
            self._eof_told = True
            if not self._protocol.eof_received():
                self.close()

    def _receive(self, data: bytes) -> None:
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)
            return
        while data and not self._is_lost:
            buffer = protocol.get_buffer(len(data))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]  # type: ignore[index]
            protocol.buffer_updated(size)
            data = data[size:]

    def _on_room(self) -> None:
        self._loop.inject(self._after_room)

    def _after_room(self) -> None:
        if self._is_lost:
            return
        if self._is_paused and self._link.down.num_unsent <= self._low:
            self._is_paused = False
            self._protocol.resume_writing()
        if self._is_closing:
            self._close_if_flushed()

    def on_reset(self) -> None:
        """The client's reset has come."""
        self._link.down.cut()
        self._loop.inject(self._lose, ConnectionResetError(104, "Connection reset by peer"))

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            self._protocol.connection_lost(error)

    def _close_if_flushed(self) -> None:
        if not self._link.down.has_unsent and not self._is_lost:
            self._loop.call_soon(self._lose, None)
            self._link.down.end()
            self._link.server_closed()

    # asyncio's side

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "link":
            return self._link
        return ("127.0.0.1", 40000 + self._link.number) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        assert low is not None
        self._high, self._low = high, low

    def get_write_buffer_size(self) -> int:
        return self._link.down.num_unsent

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._link.down.end()

    def write(self, data: Any) -> None:
        is_tls = isinstance(self._protocol, SSLProtocol)  # which also writes then
        assert is_tls or not self._is_closing, "a write after the close"
        if self._is_lost:
            return
        self._link.world.note("write", self._link.number, *(() if is_tls else (len(data),)))
        self._link.down.send(bytes(data))
        if self._link.down.num_unsent > self._high and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._reads

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        if self._link.up.has_unread or self._link.up.is_ended:
            self._on_data()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._close_if_flushed()

    def abort(self) -> None:
        self._force_close(None)

    def _force_close(self, error: Exception | None) -> None:
        """Is called by asyncio's TLS, too."""
        self._is_closing = True
        self._link.server_resets()
        self._loop.call_soon(self._lose, error)


class Link:
    """One connection.

    Attributes:
        up, down: the bytes to and from the server.
        owner: the server that has the connection.
        is_reset: whether the client has been told of a reset.
        on_change: called in the world's time when the client has something to look at.
    """

    def __init__(
        self,
        world: World,
        number: int,
        line: Line,
        start: Callable[[Link], None],
        flow: type[Flow] = Flow,
    ) -> None:
        self.world = world
        self.number = number
        self.up, self.down = flow(world, line), flow(world, line)
        self.is_reset = False
        self.is_client_gone = self.is_client_reset = False
        self.on_change: Callable[[], None] = lambda: None
        self.down.on_data = self._on_down
        self.transport: ServerTransport | None = None
        self.owner: object = None
        self._line = line
        self._opens_at = world.now + world.chance.uniform(*line.delay)
        world.at(self._opens_at, lambda: start(self))

    def _on_down(self) -> None:
        if self.is_client_gone:  # a host answers data for a closed socket with a reset
            self.client_resets()
        else:
            self.on_change()

    def client_resets(self) -> None:
        self.is_client_gone = True
        self.up.cut()
        self._later(self._tell_server)

    def _tell_server(self) -> None:
        self.is_client_reset = True
        if self.transport is not None:
            self.transport.on_reset()

    def server_resets(self) -> None:
        self.up.cut()
        self.down.drop()
        self._later(self._tell_reset)

    def server_closed(self) -> None:
        """The server's socket is closed: what comes for it now is answered with a reset."""
        if self.up.has_unread:
            self.server_resets()

    def refuse(self) -> None:
        self._tell_reset()

    def _tell_reset(self) -> None:
        self.is_reset = True
        self.down.cut()
        self.on_change()

    def _later(self, event: Callable[[], object]) -> None:
        delay = self.world.chance.uniform(*self._line.delay)
        self.world.at(max(self._opens_at, self.world.now + delay), lambda: event() and None)
