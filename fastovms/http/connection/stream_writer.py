"""Writes the streamed answer to one request, chunked, of a known length, or ended by the
connection's end, and keeps a silent one alive by comments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastovms.http.connection.server_state import ServerState
from fastovms.http.connection.wire import Wire
from fastovms.http.routing.messages import HeaderPairs, Request, StreamHead

PING = b": ping\n\n"

_EVENT_STREAM_FIELDS = (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"))


class ResponseStream:
    """Implements `messages.Stream`.

    Args:
        ping: whether to send an SSE comment whenever an event stream has been silent for a while.

    Attributes:
        is_last: whether the connection ends with it. This is decided when the head is sent.
    """

    __slots__ = (
        "_chunked",
        "_head",
        "_headers",
        "_is_event_stream",
        "_last_sent",
        "_loop",
        "_muted",
        "_ping_interval",
        "_ping_timer",
        "_request",
        "_server",
        "_wire",
        "aborted",
        "closed",
        "is_last",
        "on_writable",
        "started",
    )

    def __init__(
        self,
        wire: Wire,
        server: ServerState,
        request: Request,
        head: StreamHead,
        *,
        is_last: bool,
        ping: bool,
    ) -> None:
        is_event_stream = head.content_type.startswith("text/event-stream")
        self._is_event_stream = is_event_stream
        self._wire = wire
        self._server = server
        self._loop = loop = server.loop
        self._request = request
        self._head = head
        self.set_headers(head.headers)
        is_sized = head.length is not None
        self._chunked = request.http_version != "1.0" and not is_sized
        self._muted = request.method == "HEAD"
        # Towards HTTP/1.0 a message of unknown length ends with the connection (RFC 9112 6.1).
        self.is_last = is_last or not (self._chunked or is_sized)
        self.started = False
        self.closed = False
        self.aborted = False
        self.on_writable: Callable[[], None] | None = None
        self._ping_interval = server.config.ping_interval if ping and is_event_stream else 0
        self._ping_timer: asyncio.TimerHandle | None = None
        self._last_sent = 0.0
        if self._ping_interval:
            self._last_sent = loop.time()
            self._ping_timer = loop.call_later(self._ping_interval, self._on_silence)

    def set_headers(self, headers: HeaderPairs) -> None:
        self._headers = _EVENT_STREAM_FIELDS + headers if self._is_event_stream else headers

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
        # A close-delimited message that ends in FIN looks whole, so that one needs a reset. One of
        # a known length may have had its last byte.
        self._wire.cut(reset=not self._chunked)

    def release(self) -> None:
        """Marks the stream as over; the connection calls it too, when the client has gone."""
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

    def _render_head(self) -> bytes:
        server, request, headers = self._server, self._request, self._headers
        self.is_last = self.is_last or server.draining
        headers += server.dispatcher.cross_origin_fields(request)
        return server.writer.render_stream_head(
            self._head._replace(headers=headers),
            request,
            close=self.is_last,
            chunked=self._chunked,
        )

    def _on_silence(self) -> None:
        """Sends a comment if nothing was sent for an interval. It runs once an interval at most:
        `send` only notes the time."""
        wait = self._last_sent + self._ping_interval - self._loop.time()
        if wait <= 0:
            if self.writable:
                self.send(PING)
            wait = self._ping_interval
        if not self.closed:
            self._ping_timer = self._loop.call_later(wait, self._on_silence)
