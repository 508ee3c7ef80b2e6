"""An HTTP client for OpenAI-compatible servers, used by `fastovms chat` and `fastovms bench`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from fastovms.errors import ConfigurationError, RequestFailed


def failed_with(status: int, body: bytes) -> RequestFailed:
    """Returns the exception for an error response. The message is read from the body in the formats
    of OpenAI (`error` with a `message`), OVMS (`error` as text) and FastAPI (`detail`), or as plain
    text."""
    text = body.decode(errors="replace")
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return RequestFailed(f"HTTP {status}", text)
    return RequestFailed(f"HTTP {status}", error_text(answer))


def error_text(answer: object) -> str:
    """Returns the error message in a server's decoded JSON body."""
    while isinstance(answer, dict):
        inner = next((answer[key] for key in ("error", "message", "detail") if key in answer), None)
        if inner is None:
            return json.dumps(answer)
        answer = inner
    return answer if isinstance(answer, str) else json.dumps(answer)


_PORTS: Final = {"http": 80, "https": 443}


class Target(NamedTuple):
    """The address of a server's API.

    Attributes:
        host: host name or IP address, in ASCII (RFC 5891).
        path: the prefix of all paths, such as "/v1".
    """

    host: str
    port: int
    path: str
    is_tls: bool = False

    @classmethod
    def from_url(cls, url: str, name: str = "URL") -> Target:
        """Parses the base URL of an API; the path is `/v1` if the URL has none.

        Args:
            name: the argument's name, for error messages.

        Raises:
            ConfigurationError: the URL is invalid.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
            # As `create_connection` encodes the name. It would raise UnicodeError for a name such
            # as a..b.
            host = None if parts.hostname is None else parts.hostname.encode("idna").decode()
        except ValueError as error:
            raise ConfigurationError(f"{name} {url!r}: {error}") from None
        if parts.scheme not in _PORTS or host is None:
            raise ConfigurationError(
                f"{name} must be http://HOST:PORT or https://HOST:PORT, with or without a path "
                f"such as /v1, not {url!r}"
            )
        unused = {
            "query": parts.query,
            "fragment": parts.fragment,
            "user name": parts.username or parts.password,
        }
        for what, value in unused.items():
            if value:
                raise ConfigurationError(
                    f"{name} must have no {what}: requests would not contain it"
                )
        return cls(
            host,
            _PORTS[parts.scheme] if port is None else port,
            parts.path.rstrip("/") or "/v1",
            parts.scheme == "https",
        )

    @property
    def authority(self) -> str:
        """Host and port in the format of the `Host` header (RFC 9110, 7.2)."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


DONE: Final = b"[DONE]"
"""The data of the event that ends a stream in OpenAI's API."""

_MAX_LINE: Final = 16 * 1024 * 1024
"""The maximum bytes of one line; a longer line is a protocol error."""


class EventStream:
    """Parses a stream of server-sent events. OpenAI's API sends each event as a single data line,
    so each line is one event; comments and other fields are ignored."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Parses further bytes of the stream, and returns the data of each event that is complete.

        Raises:
            RequestFailed: a line is longer than `_MAX_LINE`.
        """
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _MAX_LINE:
            raise RequestFailed(
                "protocol error", f"a line of the stream is longer than {_MAX_LINE} bytes"
            )
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class FunctionPart(msgspec.Struct):
    """A delta of a tool call's function: its name, or more of its arguments."""

    name: str | None = None
    arguments: str | None = None


class CallPart(msgspec.Struct):
    """A delta of a tool call; `index` identifies the call within the message."""

    index: int = 0
    id: str | None = None
    function: FunctionPart = msgspec.field(default_factory=FunctionPart)


class MessagePart(msgspec.Struct):
    """A delta of a message. vLLM used the name `reasoning_content` before `reasoning`; servers send
    either."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[CallPart] | None = None

    @property
    def reasoning_text(self) -> str | None:
        """The reasoning, which servers send in one of two fields; None = no reasoning."""
        return self.reasoning or self.reasoning_content


class StreamedChoice(msgspec.Struct):
    """A delta of one choice."""

    text: str | None = None
    delta: MessagePart | None = None
    finish_reason: str | None = None

    @property
    def brings_output(self) -> bool:
        """Whether the delta has model output. The first event of a chat may have only the role, and
        the last event only the finish reason."""
        part = self.delta
        if part is None:
            return bool(self.text) or self.finish_reason is None
        return bool(
            part.content
            or part.reasoning
            or part.reasoning_content
            or part.tool_calls
            or part.refusal
        )


class TokenCounts(msgspec.Struct):
    """The token counts of a request, as reported by the server."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class StreamEvent(msgspec.Struct):
    """One event of a stream."""

    choices: list[StreamedChoice] = []
    usage: TokenCounts | None = None
    error: object = None


_DECODER: Final = msgspec.json.Decoder(StreamEvent)


def read_event(data: bytes) -> StreamEvent:
    """Decodes the data of an event.

    Raises:
        RequestFailed: the data are an error message, or not an event of the completion APIs.
    """
    try:
        event = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestFailed(
            "protocol error", f"an event of the stream is invalid: {error}"
        ) from None
    if event.error is not None:
        raise RequestFailed("error in the stream", error_text(event.error))
    return event


OnEvent = Callable[[bytes, float], None]
"""Called with the data of an event and the time at which it was read, in seconds of
`time.perf_counter`. May raise RequestFailed to end the request."""

_MAX_BODY: Final = 64 * 1024 * 1024
"""The maximum bytes of a response body; a longer one is a protocol error."""


class HttpClient:
    """Sends requests to one server. A connection is reused if its last response was read to the
    end.

    Each event of a stream is passed to a callback with the time at which its bytes were read.

    Args:
        headers: additional headers of every request.
        verify: whether the certificate of a TLS server must be valid.
    """

    def __init__(
        self, target: Target, *, headers: Mapping[str, str] | None = None, verify: bool = True
    ) -> None:
        self.target = target
        fields = {"Host": target.authority, **(headers or {})}
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._tls = ssl.create_default_context() if target.is_tls else None
        if self._tls is not None and not verify:
            self._tls.check_hostname = False
            self._tls.verify_mode = ssl.CERT_NONE
        self._idle: list[ClientConnection] = []

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[ClientConnection]:
        """Yields a connection that the caller may use for any number of consecutive requests.

        Raises:
            RequestFailed: the server cannot be reached.
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
        """Sends a request and returns the whole response body; see `ClientConnection.exchange`."""
        async with self.connection() as connection:
            return await connection.exchange(method, path, body)

    async def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)  # let the transports close their sockets

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
    """One HTTP connection to the server; it handles one request at a time."""

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
        """Whether another request may be sent on this connection."""
        return self._is_open and self._ended is None

    def close(self) -> None:
        """Closes the connection; a running request fails."""
        self._is_open = False
        if self._transport is not None:
            self._transport.abort()

    async def exchange(
        self, method: str, path: str, body: bytes = b"", on_event: OnEvent | None = None
    ) -> bytes:
        """Sends a request and reads the response to its end.

        Args:
            on_event: called with each event of a stream; the body is then empty. An `OSError` from
                this callback, such as BrokenPipeError, ends the exchange and is raised.

        Returns:
            The body of the response.

        Raises:
            RequestFailed: the response is an error or incomplete.
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
                raise RequestFailed("connection closed", "the server closed it before the request")
            # Bytes of the command line that are not UTF-8 are sent unchanged.
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
            self.close()  # no request is waiting for a response
            return
        try:
            self._parser.feed_data(data)
            if self._on_event is not None and self._pieces and self._parser.get_status_code() < 300:
                pieces, self._pieces = self._pieces, []
                for event in self._events.feed(b"".join(pieces)):
                    self._on_event(event, now)
            elif self._num_bytes > _MAX_BODY:
                raise RequestFailed("protocol error", "the answer is too long")
        except OSError as error:
            # Raised by `on_event` because its output is closed; the server is not at fault.
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
                self._ended.set_result(None)  # a response without framing ends here (RFC 9112, 6.3)
            return
        reason = "before the end of the answer" if exc is None else str(exc)
        self._fail(RequestFailed("connection closed", reason))

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
        # A message without framing ends with the connection.
        self._keeps_alive = self._has_framing and self._parser.should_keep_alive()


def _words(error: OSError) -> str:
    """Returns the operating system's error message, which asyncio replaces with its own."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return error.strerror or str(error)


async def first_model(client: HttpClient) -> str:
    """Returns the name of the first model that the server lists.

    Raises:
        RequestFailed: the server cannot be reached or lists no models.
    """
    path = f"{client.target.path}/models"
    answer = await client.ask("GET", path)
    try:
        name = json.loads(answer)["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        name = None
    if not isinstance(name, str):
        raise RequestFailed("no model", f"{path} lists no models: set --model")
    return name


_KERNELS: Final = re.compile(r'^fastovms_decode_kernels_info{model_name="([^"]*)",(.*)} ', re.M)


async def decode_kernels(client: HttpClient, model: str) -> str:
    """Returns the labels of the model's decode kernels metric as text; "" = the server has no such
    metric."""
    try:
        metrics = await client.ask("GET", "/metrics")
    except RequestFailed:  # another kind of server, or a key without permission
        return ""
    found: dict[str, str] = dict(_KERNELS.findall(metrics.decode(errors="replace")))
    return found.get(model, "")


@dataclass(slots=True)
class Cancellation:
    """The signal that cancelled a task; None = no signal was received."""

    signal: signal.Signals | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of a command that the signal ends, as in shells."""
        assert self.signal is not None
        return 128 + self.signal


@contextmanager
def cancelled_by(*signals: signal.Signals, task: asyncio.Task[Any]) -> Iterator[Cancellation]:
    """Cancels the task on SIGINT or SIGTERM while the context is open, and restores the previous
    signal handlers at the end. Main thread only. Yields the `Cancellation`."""
    loop = asyncio.get_running_loop()
    cancellation = Cancellation()

    def cancel(number: signal.Signals) -> None:
        cancellation.signal = cancellation.signal or number
        task.cancel()

    before = {number: signal.getsignal(number) for number in signals}
    for number in signals:
        loop.add_signal_handler(number, cancel, number)
    try:
        yield cancellation
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
