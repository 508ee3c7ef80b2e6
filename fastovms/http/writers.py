"""Writes responses and streams to a connection, with fair turns among connections."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

from fastovms.config import HttpConfig
from fastovms.http.messages import (
    Exchange,
    HeaderPairs,
    Headers,
    Observer,
    Request,
    Response,
    StreamHead,
)
from fastovms.http.parser import BodyBudget
from fastovms.http.routing import Dispatcher
from fastovms.http.wire import Outbox, Wire
from fastovms.quoting import is_id

logger = logging.getLogger(__name__)


PASS_SECONDS: Final = 0.01
"""Seconds that the requests started in one pass of the loop may take together, except the last
one."""

TASK_SECONDS: Final = 0.0005
"""The assumed seconds of the first step of a handler's task. It runs after the pass's requests, so
its time cannot be measured before the next request starts."""


REST_SECONDS: Final = 0.02
"""Seconds between two passes that handle WebSocket frames while more of them wait. An event loop
that is always busy would keep the engine's thread from running."""

READ_SECONDS: Final = 0.001
"""The assumed seconds of another read of a large body: up to 256 KB, which are copied three times
into newly committed memory."""


class PassLimiter:
    """Limits the time that one pass of the event loop spends on starting requests, reading large
    bodies and handling frames. The rest waits for later passes, in order of arrival.

    The loop reads from every connection with input before it handles anything else, such as the
    tokens of running streams. A request takes most of a millisecond until the engine has it, so
    hundreds at once would delay all streams. So would a few bodies of many megabytes, since one
    pass reads all data in the kernel's buffers.

    Args:
        clock: returns seconds. Not the loop's own clock, which does not advance during a pass.
        rest: seconds until waiting work gets its pass; 0 = the next pass.
    """

    __slots__ = ("_clock", "_end", "_is_new_pass", "_loop", "_rest", "_waiting")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], rest: float = 0.0
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._rest = rest
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_new_pass = True
        self._end = 0.0

    @property
    def is_open(self) -> bool:
        """Returns whether work may start now; if not, call `wait`."""
        if self._waiting:
            return False
        if self._is_new_pass:
            self._start_pass()
            return True
        return self._clock() < self._end

    def wait(self, begin: Callable[[], None]) -> None:
        """Calls `begin` in one of the next passes."""
        self._waiting.append(begin)

    def count_task(self) -> None:
        """Counts a request that has started and continues as a task."""
        self._end -= TASK_SECONDS

    def count_read(self) -> None:
        """Counts a connection that continues to read a large body after this pass."""
        self._end -= READ_SECONDS

    def _start_pass(self) -> None:
        self._is_new_pass = False
        self._end = self._clock() + PASS_SECONDS
        self._loop.call_soon(self._on_next_pass)

    def _on_next_pass(self) -> None:
        self._is_new_pass = True
        if self._waiting:
            if self._rest:
                self._loop.call_later(self._rest, self._admit_waiting)
            else:
                self._admit_waiting()

    def _admit_waiting(self) -> None:
        self._start_pass()
        while self._waiting:
            self._waiting.popleft()()
            if self._clock() >= self._end:
                break


_REASONS = {status.value: status.phrase for status in HTTPStatus}
_TOKEN_CHARACTERS = frozenset(
    "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
_OWN_FIELDS = frozenset(
    (
        "connection",
        "content-length",
        "content-type",
        "date",
        "traceresponse",
        "transfer-encoding",
        "request-id",
        "x-request-id",
    )
)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ResponseWriter:
    """Serializes responses. Caches the part that changes only once a second. `clock` returns the
    Unix time in seconds, for the Date field."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._second = 0
        self._beginnings: dict[tuple[int, str], str] = {}

    def render(
        self, response: Response, request: Request, *, close: bool, extra: HeaderPairs = ()
    ) -> bytes:
        """Returns a complete message; only the head for HEAD and for statuses without content."""
        status = response.status
        if status == 204 or status == 304:
            # RFC 9110 8.6: no Content-Length on a 204; a 304 may leave it out.
            return self._head(status, "", "", request, close, response.headers + extra)
        body = response.body
        length = f"Content-Length: {len(body)}\r\n"
        head = self._head(
            status, response.content_type, length, request, close, response.headers + extra
        )
        return head if request.method == "HEAD" else head + body

    def render_stream_head(
        self, head: StreamHead, request: Request, *, close: bool, chunked: bool
    ) -> bytes:
        """Returns the head of a message of known length, a chunked message, or a message that ends
        with the connection (HTTP/1.0)."""
        framing = "Transfer-Encoding: chunked\r\n" if chunked else ""
        if head.length is not None:
            framing = f"Content-Length: {head.length}\r\n"
        return self._head(head.status, head.content_type, framing, request, close, head.headers)

    def _head(
        self,
        status: int,
        content_type: str,
        fields: str,
        request: Request,
        close: bool,
        more: HeaderPairs,
    ) -> bytes:
        if close:
            fields += "Connection: close\r\n"
        elif request.http_version == "1.0":
            fields += "Connection: keep-alive\r\n"
        if more:
            fields += render_fields(more)
        if request.trace is not None:
            fields += f"traceresponse: {request.trace.response}\r\n"
        beginning = self._beginning(status, content_type)
        # OpenAI's clients read X-Request-Id, Anthropic's Request-Id.
        ids = f"X-Request-Id: {request.id}\r\nRequest-Id: {request.id}\r\n"
        return f"{beginning}{fields}{ids}\r\n".encode("latin-1")

    def render_upgrade(self, request: Request, fields: HeaderPairs) -> bytes:
        """Returns the answer that switches to another protocol (RFC 9110 15.2.2)."""
        added = (("Connection", "Upgrade"), ("X-Request-Id", request.id))
        lines = "".join(f"{name}: {value}\r\n" for name, value in (*fields, *added))
        return f"{self._beginning(101, '')}{lines}\r\n".encode("latin-1")

    def _beginning(self, status: int, content_type: str) -> str:
        """Returns the lines up to Content-Type. A `content_type` of "" means no content."""
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._beginnings.clear()
        beginning = self._beginnings.get((status, content_type))
        if beginning is None:
            reason = _REASONS.get(status, "")
            beginning = f"HTTP/1.1 {status} {reason}\r\nDate: {formatdate(second, usegmt=True)}\r\n"
            if content_type:
                beginning += f"Content-Type: {clean(content_type)}\r\n"
            self._beginnings[status, content_type] = beginning
        return beginning


def render_fields(headers: HeaderPairs) -> str:
    """Returns header field lines. Raises ValueError if a name is not a token (RFC 9110 5.1) or a
    field that the server itself writes; both are errors of the handler."""
    lines = []
    for name, value in headers:
        if not name or not _TOKEN_CHARACTERS.issuperset(name):
            raise ValueError(f"{name!r} is not a header field name")
        if name.lower() in _OWN_FIELDS:
            raise ValueError(f"the server itself writes the field {name!r}")
        lines.append(f"{name}: {clean(value)}\r\n")
    return "".join(lines)


def clean(value: str) -> str:
    """Returns the value with every character that could end or corrupt a field line replaced by a
    space (RFC 9110 5.5), and characters outside latin-1 by a question mark."""
    if value.isascii() and value.isprintable():
        return value
    spaced = "".join(
        " " if character < " " or character == "\x7f" else character for character in value
    )
    return spaced.encode("latin-1", "replace").decode("latin-1")


_MAX_REQUEST_ID = 128
_MAX_REFUSED = 8


class ManagedConnection(Protocol):
    """The operations that the server uses on a connection."""

    def drain(self) -> None:
        """Closes after the next answer, or soon if the connection stays idle."""

    def cut(self) -> None:
        """Resets the connection."""

    def requests(self) -> Iterator[Request]:
        """Yields the requests that are being answered, are queued, or are still being read."""


class ServerState:
    """State and counters that connections share.

    Args:
        clock: returns seconds, and advances also within a pass of the loop.
        memory_left: see `BodyBudget`.
        client_of: returns the client's address, given the connection's peer and the headers.

    Attributes:
        draining: whether every answer from now on is its connection's last.
        connections: the open connections.
        max_connections: the number of connections that are not refused; at most the configured
            number.
        tasks: the running handlers, including those of lost connections.
    """

    def __init__(
        self,
        config: HttpConfig,
        dispatcher: Dispatcher,
        loop: asyncio.AbstractEventLoop,
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] = time.perf_counter,
        memory_left: Callable[[], float] = lambda: math.inf,
        client_of: Callable[[str, Headers], str] = lambda peer, _: peer,
    ) -> None:
        self.config = config
        self.dispatcher = dispatcher
        self.loop = loop
        self.observers = tuple(observers)
        self.writer = ResponseWriter()
        self.client_of = client_of
        self.body_budget = BodyBudget(config.max_buffered_bodies, memory_left, clock)
        self.outbox = Outbox(loop)
        self.start_limiter = PassLimiter(loop, clock)
        self.read_limiter = PassLimiter(loop, clock)
        self.frame_limiter = PassLimiter(loop, clock, REST_SECONDS)
        self.connections: set[ManagedConnection] = set()
        self.max_connections = config.max_connections
        self._refused: dict[ManagedConnection, None] = {}
        self.tasks: set[asyncio.Future[Response | None]] = set()
        self.draining = False
        self._id_prefix = secrets.token_hex(6)
        self._ids = itertools.count(1)
        self._empty: asyncio.Future[None] | None = None

    def add(self, connection: ManagedConnection) -> bool:
        """Registers a connection. Returns False if the limit is reached and the connection is to be
        refused. Only a few refused connections stay open until their clients close them: one more
        cuts the oldest."""
        self.connections.add(connection)
        if len(self.connections) - len(self._refused) <= self.max_connections:
            return True
        if len(self._refused) >= _MAX_REFUSED:
            oldest = next(iter(self._refused))
            del self._refused[oldest]
            oldest.cut()
        self._refused[connection] = None
        return False

    @property
    def max_handshakes(self) -> int:
        """The maximum number of connections in their TLS handshake. At the connection limit some
        are still allowed, to be refused after the handshake."""
        left = self.max_connections - len(self.connections)
        return max(left, min(_MAX_REFUSED, self.max_connections))

    def remove(self, connection: ManagedConnection) -> None:
        """Unregisters a connection that is closed."""
        self.connections.discard(connection)
        self._refused.pop(connection, None)
        if not self.connections and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    async def wait_until_empty(self) -> None:
        """Returns when no connection is open."""
        if self.connections:
            self._empty = self.loop.create_future()
            await self._empty

    def give_back_body(self, request: Request) -> None:
        """Releases the memory budget of the request's body. Call it once."""
        if request.sink is not None:
            request.sink.close()
        if request.body:
            self.body_budget.give_back(request.sender, len(request.body))

    def request_id(self, given: str | None) -> str:
        """Returns the client's id if it consists of 1 to 128 visible ASCII characters, otherwise a
        new id."""
        if given and is_id(given, _MAX_REQUEST_ID):
            return given
        return f"{self._id_prefix}-{next(self._ids):x}"

    def report(self, exchange: Exchange) -> None:
        """Passes a finished request to the observers; their errors are logged."""
        for observer in self.observers:
            try:
                observer(exchange)
            except Exception:
                name = getattr(observer, "__qualname__", type(observer).__qualname__)
                logger.exception("a request was not logged or measured: %s failed", name)


PING = b": ping\n\n"

_EVENT_STREAM_FIELDS = (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"))


class Handover(NamedTuple):
    """The data that a connection passes on when it switches to another protocol.

    Attributes:
        budget: the memory budget of request bodies.
        limiter: limits the work of connections in one pass of the loop.
        sender: the sender whose share of the memory the connection's messages use.
        report: notifies the observers of a request that came over the connection.
    """

    wire: Wire
    loop: asyncio.AbstractEventLoop
    config: HttpConfig
    budget: BodyBudget
    limiter: PassLimiter
    sender: str
    report: Callable[[Exchange], None]


class Successor(ABC):
    """Handles a connection that has switched to another protocol. The connection calls these
    methods."""

    @property
    @abstractmethod
    def client_has_closed(self) -> bool:
        """Whether the client has closed its side of the connection."""

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Receives bytes from the client."""

    @abstractmethod
    def on_resume(self) -> None:
        """Called when the client reads again."""

    @abstractmethod
    def drain(self) -> None:
        """Starts to close the connection, because the server is shutting down."""

    @abstractmethod
    def close(self) -> None:
        """Ends the connection once its handler has returned."""

    @abstractmethod
    def fail(self) -> None:
        """Ends the connection whose handler has raised."""

    @abstractmethod
    def lose(self) -> None:
        """Called when the client has disconnected."""


class ResponseStream:
    """Implements `messages.Stream`.

    Args:
        ping: whether to send an SSE comment after some time without an event.
        has_returned: whether the handler has returned. It may have returned a Response because the
            stream had not started.

    Attributes:
        is_last: whether the connection ends after it; decided when the head is sent.
    """

    __slots__ = (
        "_chunked",
        "_has_returned",
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
        has_returned: Callable[[], bool],
    ) -> None:
        is_event_stream = head.content_type.startswith("text/event-stream")
        self._is_event_stream = is_event_stream
        self._wire = wire
        self._server = server
        self._loop = loop = server.loop
        self._request = request
        self._has_returned = has_returned
        self._head = head
        self.set_headers(head.headers)
        is_sized = head.length is not None
        self._chunked = request.http_version != "1.0" and not is_sized
        self._muted = request.method == "HEAD"
        # For HTTP/1.0 a message of unknown length ends with the connection (RFC 9112 6.1).
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
        # A close-delimited message that ends with FIN looks complete, so an incomplete one needs a
        # reset. The last bytes of a message of known length may still be on their way.
        self._wire.cut(reset=not self._chunked)

    def release(self) -> None:
        """Marks the stream as finished; also called on a disconnect."""
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
        headers += server.dispatcher.answer_fields(request)
        return server.writer.render_stream_head(
            self._head._replace(headers=headers),
            request,
            close=self.is_last,
            chunked=self._chunked,
        )

    def _on_silence(self) -> None:
        """Sends an SSE comment if nothing was sent for an interval. Runs at most once per interval;
        `send` only records the time."""
        wait = self._last_sent + self._ping_interval - self._loop.time()
        if wait <= 0:
            if self.writable and not self._has_returned():
                self.send(PING)
            wait = self._ping_interval
        if not self.closed:
            self._ping_timer = self._loop.call_later(wait, self._on_silence)
