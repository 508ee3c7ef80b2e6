"""Sends requests to one server over raw transports, and reads its answers and streams.

Every event of a stream is handed on with the time at which its bytes were read.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, cast

import httptools

from fastovms.client.event_stream import EventStream
from fastovms.client.request_failed import RequestFailed, failed_with
from fastovms.client.target import Target

OnEvent = Callable[[bytes, float], None]
"""Takes the data of an event, and when it was read, in seconds of `time.perf_counter`. It may raise
RequestFailed, with which the request then ends."""

_MAX_BODY: Final = 64 * 1024 * 1024
"""Bytes of a whole answer, beyond which it is given up."""


class HttpClient:
    """Asks one server. Connections whose last answer was read to its end are used again.

    Args:
        headers: further ones of every request.
        verify: whether the certificate of a server with TLS must be valid.
    """

    def __init__(
        self, target: Target, *, headers: Mapping[str, str] | None = None, verify: bool = True
    ) -> None:
        self.target = target
        fields = {"Host": target.authority, **(headers or {})}
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._tls = _tls_context(verify=verify) if target.is_tls else None
        self._idle: list[ClientConnection] = []

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[ClientConnection]:
        """Yields a connection for requests one after the other.

        Raises:
            RequestFailed: there is none to be had.
        """
        connection = await self._connect()
        try:
            yield connection
        finally:
            if connection.is_reusable:
                self._idle.append(connection)
            else:
                connection.close()

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Returns the whole answer to one request; see `ClientConnection.exchange`."""
        async with self.connection() as connection:
            return await connection.exchange(method, path, body)

    async def close(self) -> None:
        """Closes the connections that are idle."""
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)  # for the transports to close their sockets

    async def _connect(self) -> ClientConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
            connection.close()
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: ClientConnection(self._fields),
                self.target.host,
                self.target.port,
                ssl=self._tls,
            )
        except OSError as error:  # ssl.SSLError and socket.gaierror are among them
            raise RequestFailed(
                "no connection", f"{self.target.authority}: {_words(error)}"
            ) from None
        return connection


class ClientConnection(asyncio.Protocol):
    """One connection to the server, which answers one request at a time."""

    def __init__(self, fields: str) -> None:
        self._fields = fields
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] | None = None
        self._on_event: OnEvent | None = None
        self._events = EventStream()
        self._pieces: list[bytes] = []
        self._num_bytes = 0
        self._has_framing = False
        self._is_complete = False
        self._has_head = False
        self._keeps_alive = False
        self._parser = httptools.HttpResponseParser(self)
        self._is_open = False

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent."""
        return self._is_open and self._ended is None

    def close(self) -> None:
        self._is_open = False
        if self._transport is not None:
            self._transport.abort()

    async def exchange(
        self, method: str, path: str, body: bytes = b"", on_event: OnEvent | None = None
    ) -> bytes:
        """Sends a request and reads its answer to the end.

        Args:
            on_event: gets the events of a stream, which then are not returned. An `OSError` of
                it, such as BrokenPipeError, ends the exchange and is raised.

        Returns:
            The body of the answer.

        Raises:
            RequestFailed: the answer's status is none of success, or the answer is not whole.
        """
        assert self._transport is not None
        assert self._ended is None, "an answer is still being read"
        self._parser = httptools.HttpResponseParser(self)
        self._on_event = on_event
        self._events = EventStream()
        self._pieces, self._num_bytes = [], 0
        self._has_framing = self._is_complete = self._has_head = self._keeps_alive = False
        head = f"{method} {path} HTTP/1.1\r\n{self._fields}"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        ended = self._ended = asyncio.get_running_loop().create_future()
        try:
            if not self._is_open:
                raise RequestFailed("connection closed", "before the request")
            # What stood on the command line in another encoding is sent as it stood there.
            fields = head.encode(errors="surrogateescape")
            self._transport.write(fields + b"\r\n" + body)
            await ended
        finally:
            self._ended = self._on_event = None
            if not self._keeps_alive:
                self.close()
        answer = b"".join(self._pieces)
        status = self._parser.get_status_code()
        if status >= 300:
            raise failed_with(status, answer)
        return answer

    # Protocol interface

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._is_open = True

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._ended is None or self._ended.done():
            self.close()  # nobody has asked for it
            return
        try:
            self._parser.feed_data(data)
            if self._on_event is not None and self._pieces and self._is_stream:
                pieces, self._pieces = self._pieces, []
                for event in self._events.feed(b"".join(pieces)):
                    self._on_event(event, now)
            elif self._num_bytes > _MAX_BODY:
                raise RequestFailed("protocol error", "the answer is too long")
        except OSError as error:  # of `on_event`: what it writes to is gone, not the server
            self._fail(error)
        except httptools.HttpParserError as error:
            self._fail(RequestFailed("protocol error", str(error)))
        except RequestFailed as error:
            self._fail(error)
        else:
            if self._is_complete:
                self._ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        if self._has_head and not self._has_framing and exc is None:
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)  # the answer's end (RFC 9112, 6.3)
            return
        reason = "before the end of the answer" if exc is None else str(exc)
        self._fail(RequestFailed("connection closed", reason))

    @property
    def _is_stream(self) -> bool:
        return bool(self._parser.get_status_code() < 300)

    def _fail(self, error: RequestFailed | OSError) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    # Parser callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_framing = True

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._num_bytes += len(body)

    def on_message_complete(self) -> None:
        self._is_complete = True
        # Of a message that has no framing, its end is the connection's.
        self._keeps_alive = self._has_framing and self._parser.should_keep_alive()


def _words(error: OSError) -> str:
    """Returns the system's words for an error, which asyncio replaces with its own."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return error.strerror or str(error)


def _tls_context(*, verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
