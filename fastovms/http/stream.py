"""The streamed answer to one request: chunked, or ended by the connection's end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastovms.http.wire import Wire

PING = b": ping\n\n"


class ResponseStream:
    """Implements `messages.Stream`.

    Args:
        render_head: called when the first byte is due.
        chunked: False = the message ends with the connection (HTTP/1.0).
        muted: only the head is sent (the answer to HEAD).
        ping_interval: seconds of silence after which an SSE comment is sent; 0 = never.
    """

    __slots__ = (
        "_chunked",
        "_last_sent",
        "_loop",
        "_muted",
        "_ping_interval",
        "_ping_timer",
        "_render_head",
        "_wire",
        "aborted",
        "closed",
        "on_writable",
        "started",
    )

    def __init__(
        self,
        wire: Wire,
        loop: asyncio.AbstractEventLoop,
        render_head: Callable[[], bytes],
        *,
        chunked: bool,
        muted: bool,
        ping_interval: float,
    ) -> None:
        self._wire = wire
        self._loop = loop
        self._render_head = render_head
        self._chunked = chunked
        self._muted = muted
        self.started = False
        self.closed = False
        self.aborted = False
        self.on_writable: Callable[[], None] | None = None
        self._ping_interval = ping_interval
        self._ping_timer: asyncio.TimerHandle | None = None
        self._last_sent = 0.0
        if ping_interval:
            self._last_sent = loop.time()
            self._ping_timer = loop.call_later(ping_interval, self._on_silence)

    @property
    def writable(self) -> bool:
        return not self.closed and self._wire.writable

    @property
    def buffered(self) -> int:
        return 0 if self.closed else self._wire.buffered

    def send(self, data: bytes) -> None:
        if self.closed:
            return
        if self._chunked and data:  # an empty chunk would end the message
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._write(data)

    def finish(self, data: bytes = b"") -> None:
        if self.closed:
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        self._write(data)
        self.release()

    def abort(self) -> None:
        if self.closed:
            return
        self.aborted = True
        self.release()
        # A close-delimited message that ends in FIN looks whole, so that one needs a reset.
        self._wire.cut(reset=not self._chunked)

    def release(self) -> None:
        """Marks the end; called by the connection too, when the client has gone."""
        self.closed = True
        self.on_writable = None
        if self._ping_timer is not None:
            self._ping_timer.cancel()
            self._ping_timer = None

    def _write(self, data: bytes) -> None:
        if self._muted:
            data = b""
        if not self.started:
            data = self._render_head() + data
            self.started = True
        if data:
            if self._ping_interval:
                self._last_sent = self._loop.time()
            self._wire.write(data)

    def _on_silence(self) -> None:
        """Runs once an interval at most: `send` only notes the time."""
        wait = self._last_sent + self._ping_interval - self._loop.time()
        if wait <= 0:
            if self.writable:
                self.send(PING)
            wait = self._ping_interval
        if not self.closed:
            self._ping_timer = self._loop.call_later(wait, self._on_silence)
