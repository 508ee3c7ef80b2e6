"""`Request`, `Response` and `Stream`, the interface of handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from mmap import mmap
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote

from fastovms.telemetry.tracing import TraceContext


class BodySink(Protocol):
    """Receives the body of one request as it arrives. Called on the event loop; slow work, such as
    writing to disk, must run in threads.

    Attributes:
        max_size: the maximum size of a body in bytes; larger ones get 413.
        fault: the answer that refuses the rest of the body; None = no error so far.
        on_change: called when `is_full` becomes False, or `fault` is set.
    """

    max_size: int
    fault: Response | None
    on_change: Callable[[], None] | None

    @property
    def min_rate(self) -> float:
        """The minimum rate of the client, in bytes per second, at this time."""

    @property
    def is_full(self) -> bool:
        """Whether so much data is buffered that reading from the client should pause."""

    def write(self, piece: bytes) -> None:
        """Receives the next piece."""

    def close(self) -> None:
        """Closes the sink at the end of the request, whether it was answered or not, and discards
        unused data. Idempotent."""


EVENT_STREAM = "text/event-stream; charset=utf-8"

HeaderPairs = tuple[tuple[str, str], ...]


class Headers:
    """Header fields in the order received; names are compared case-insensitively (RFC 9110 5.1).

    Attributes:
        by_name: value by lower-case name; several lines of one name are joined by commas (RFC 9110
            5.3).
    """

    __slots__ = ("_items", "by_name")

    def __init__(self, items: Iterable[tuple[str, str]] = ()) -> None:
        self._items = [(name.lower(), value) for name, value in items]
        self.by_name = dict(self._items)
        if len(self.by_name) != len(self._items):
            for name in self.by_name:
                self.by_name[name] = ", ".join(self.get_all(name))

    def get(self, name: str, default: str | None = None) -> str | None:
        """Returns the value of a field, with several lines joined by commas; `default` if it is
        absent."""
        return self.by_name.get(name.lower(), default)

    def get_all(self, name: str) -> list[str]:
        """Returns the values of all lines of a field, in order."""
        name = name.lower()
        return [value for key, value in self._items if key == name]

    def repeated(self) -> list[str]:
        """Returns the names of fields that occur on more than one line."""
        if len(self.by_name) == len(self._items):
            return []
        return [name for name in self.by_name if len(self.get_all(name)) > 1]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self.by_name


class Stream(Protocol):
    """A response body that is sent piece by piece. After the end or a disconnect, calls do nothing;
    a disconnect cancels the handler."""

    @property
    def started(self) -> bool:
        """Whether the head has been sent. Before that a handler may still return a Response."""

    @property
    def closed(self) -> bool:
        """Whether the stream is finished or aborted, or the client has disconnected."""

    @property
    def writable(self) -> bool:
        """Whether the client reads fast enough. Data sent while this is False is queued, up to
        `max_write_buffer`, so producers should hold data back and merge it."""

    @property
    def buffered(self) -> int:
        """The number of written bytes that the kernel has not accepted yet."""

    def set_headers(self, headers: HeaderPairs) -> None:
        """Adds these header fields, unless the head has been sent."""

    on_writable: Callable[[], None] | None
    """Called each time `writable` becomes True again."""

    def send(self, data: bytes) -> None:
        """Sends a piece in one write; the first one carries the head."""

    def finish(self, data: bytes = b"") -> None:
        """Sends the last piece and the end of the message in one write."""

    def abort(self) -> None:
        """Ends the message so that the client recognizes it as incomplete."""


class StreamHead(NamedTuple):
    """The head of a streamed response.

    Attributes:
        length: the total bytes of the body; None = unknown.
    """

    status: int
    content_type: str
    headers: HeaderPairs = ()
    length: int | None = None


class StreamOpener(Protocol):
    """Opens streams on the connection of a request."""

    def __call__(self, request: Request, head: StreamHead, ping: bool) -> Stream: ...


class Budget(Protocol):
    """The remaining requests and tokens of an API key with limits."""

    def admit(self, request: Request) -> None:
        """Counts a generation request, and sets its `answer_fields`. Raises Overloaded if a limit
        of the key is reached."""

    def charge(self, num_tokens: int) -> None:
        """Counts tokens of a prompt or an answer; a negative number refunds tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request, as identified by the check of API keys. The HTTP layer does not
    interpret it, except that requests of one tenant share memory and turns.

    Attributes:
        tenant: identifies the API key; "" = no keys needed. Without a default, so that it cannot be
            forgotten: state, caches and drafts are separated by tenant.
        is_admin: whether the client may send administrative requests.
        priority: the priority set by the server; None = the body's.
        budget: the remaining requests and tokens of the key; None = no limits.
    """

    tenant: str
    is_admin: bool = False
    priority: int | None = None
    budget: Budget | None = None

    def charge(self, num_tokens: int) -> None:
        """Counts tokens against the limits of the key, if it has any."""
        if self.budget is not None:
            self.budget.charge(num_tokens)


ANYBODY: Final = Caller(tenant="")


class Request:
    """A complete request.

    Attributes:
        body: its content; a memory mapping from 1 MiB on.
        sink: the receiver of the body instead of `body`; None = none.
        path: percent-decoded, without the query; for logs and comparison. Routes match `raw_path`.
        route: the matched pattern; "" = none.
        path_params: the pattern's named parts, decoded.
        client: "address:port"; "" = a Unix socket.
        id: the client's X-Request-Id if valid, otherwise a new id.
        received_at: loop time at the end of the head.
        log_fields: fields that the handler adds to the access log, such as token counts.
        answer_fields: header fields to add to its answer, such as the remaining requests of a key.
        progress: (completed steps, all steps) of the answer's work; None before the first step.
        caller: the sender.
        trace: the trace context; None = not traced.
        early_stream: the event stream that was opened before the answer; None = none.
        open_stream: opens streams on the connection; None = the request has no connection.
        turn: the handler's data about a request that is a WebSocket message; None = a request over
            HTTP.
        warnings: parts of the request that the server ignores, for the header `Warning`.
        wants_websocket: whether the client asks for an upgrade to WebSocket.
        upgrade: answers with a protocol switch and the given header fields, and passes the
            connection to the `http.writers.Successor` that the given function creates from a
            `Handover`; None = the request has no connection.
    """

    __slots__ = (
        "_held",
        "_log_fields",
        "answer_fields",
        "body",
        "caller",
        "client",
        "early_stream",
        "headers",
        "http_version",
        "id",
        "method",
        "open_stream",
        "path",
        "path_params",
        "progress",
        "query",
        "raw_path",
        "received_at",
        "route",
        "sink",
        "trace",
        "turn",
        "upgrade",
        "wants_websocket",
        "warnings",
    )

    def __init__(
        self,
        method: str,
        raw_path: str,
        query: str = "",
        headers: Headers | None = None,
        body: bytes | mmap = b"",
        http_version: str = "1.1",
        *,
        client: str = "",
        id: str = "",
    ) -> None:
        self.method = method
        self.raw_path = raw_path
        self.path = unquote(raw_path) if "%" in raw_path else raw_path
        self.query = query
        self.headers = Headers() if headers is None else headers
        self.body = body
        self.http_version = http_version
        self.client = client
        self.id = id
        self.route = ""
        self.path_params: dict[str, str] = {}
        self.received_at = 0.0
        self.caller = ANYBODY
        self.answer_fields: HeaderPairs = ()
        self.progress: tuple[int, int] | None = None
        self.trace: TraceContext | None = None
        self.early_stream: Stream | None = None
        self.sink: BodySink | None = None
        self._held: Callable[[], None] | None = None
        self.open_stream: StreamOpener | None = None
        self.turn: Any = None
        self.wants_websocket = False
        self.warnings: tuple[str, ...] = ()
        self.upgrade: Callable[[Request, HeaderPairs, Callable[[Any], Any]], Any] | None = None
        self._log_fields: dict[str, object] | None = None

    @property
    def sender(self) -> str:
        """The owner for fair sharing: the API key, or the address without a key. All addresses of
        an IPv6 /64 count as one sender, because a host chooses its address within it (RFC 4291,
        2.5.1)."""
        if self.caller.tenant:
            return self.caller.tenant
        address = self.client.rpartition(":")[0]
        return _network(address) if ":" in address else address

    @property
    def is_local(self) -> bool:
        """Whether the request came from a program on this machine: over a Unix socket or a loopback
        address, and without header fields of a proxy, which may forward requests of other
        machines."""
        if any(map(_is_of_proxy, self.headers.by_name)):
            return False
        address = self.client.rpartition(":")[0].strip("[]")
        return not self.client or _is_loopback(address)

    def set_path(self, raw_path: str) -> None:
        """Sets the path, which is percent-encoded as in the request target."""
        self.raw_path = raw_path
        self.path = unquote(raw_path) if "%" in raw_path else raw_path

    @property
    def log_fields(self) -> dict[str, object]:
        """The additional fields of the access log, which handlers may extend."""
        if self._log_fields is None:
            self._log_fields = {}
        return self._log_fields

    def stream(
        self,
        *,
        status: int = 200,
        content_type: str = EVENT_STREAM,
        headers: HeaderPairs = (),
        ping: bool = True,
        length: int | None = None,
    ) -> Stream:
        """Opens the streamed answer to this request; nothing is sent before its first `send`.

        Args:
            length: the total length of the pieces; None = unknown.
            ping: whether to send an SSE comment after some time without an event (it starts the
                stream if needed). Pieces must then be whole events.
        """
        if self.early_stream is not None:
            self.early_stream.set_headers(headers)
            return self.early_stream
        if self.open_stream is None:
            raise RuntimeError("this request cannot be streamed: it has no connection")
        return self.open_stream(self, StreamHead(status, content_type, headers, length), ping)

    def open_early(self) -> None:
        """Opens the event stream for this request before the answer is known. SSE comments are sent
        during silence. `stream` later returns this stream."""
        self.early_stream = self.stream()

    def release_at_end(self, release: Callable[[], None]) -> None:
        """Registers a function that releases a resource at the end of the request."""
        assert self._held is None, "a request holds one thing"
        self._held = release

    def release(self) -> None:
        """Releases the resources registered by `release_at_end`."""
        if self._held is not None:
            release, self._held = self._held, None
            release()


_PROXY_FIELDS: Final = frozenset(
    (
        "via",  # RFC 9110 7.6.3
        "cdn-loop",  # RFC 8586
        "client-ip",
        "true-client-ip",
        "fastly-client-ip",
        "fly-client-ip",
        "x-client-ip",
        "x-cluster-client-ip",
    )
)
_PROXY_PREFIXES: Final = (
    "forwarded",  # RFC 7239, and Forwarded-For
    "x-forwarded",
    "x-real-",
    "x-original-",
    "x-proxy",
    "proxy-",
    "x-envoy-",
    "x-amzn-",
    "x-arr-",
    "x-azure-",
    "x-appengine-",
    "cf-",
    "cloudfront-",
    "ngrok-",
    "tailscale-",
)
"""Prefixes of header fields that only proxies, load balancers and tunnels add."""


def _is_of_proxy(name: str) -> bool:
    return name in _PROXY_FIELDS or name.startswith(_PROXY_PREFIXES)


def _is_loopback(address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return (mapped or parsed).is_loopback


def _network(address: str) -> str:
    """Returns the /64 network of an IPv6 address, or the IPv4 address mapped to it."""
    try:
        parsed = IPv6Address(address)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> 64 << 64)}/64"


@dataclass(frozen=True, slots=True)
class Response:
    """A complete answer. Date, framing and X-Request-Id are added when it is written.

    Attributes:
        log_fields: additional fields for the access log, such as the reason for a refusal.
    """

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: HeaderPairs = ()
    log_fields: tuple[tuple[str, object], ...] = ()


Handler = Callable[[Request], "Awaitable[Response | None] | Response | None"]
"""Answers a request; None = the handler has finished or aborted `request.stream(...)`. A plain
function runs without a task, so it must be quick. A coroutine is cancelled when its client
disconnects."""


@dataclass(frozen=True, slots=True)
class UploadHandler:
    """A `Handler` whose requests have bodies that are received in pieces.

    Attributes:
        open_sink: returns the receiver of the body, or a refusal, given the request's head.
        answer: answers the request once `Request.sink` has received the whole body.
    """

    open_sink: Callable[[Request], BodySink | Response]
    answer: Handler

    def __call__(self, request: Request) -> Awaitable[Response | None] | Response | None:
        return self.answer(request)


ErrorRenderer = Callable[[Request, int, str], Response]
"""Returns the error response for (request, status, message), in the format of the path's API. The
path is "" if the request could not be read that far."""

Check = Callable[[Request], "Response | None"]
"""Checks a request's head before its body is read. Returns a Response to refuse the request."""


class Exchange(NamedTuple):
    """A finished request, for access logs and metrics.

    Attributes:
        status: 499 if the client disconnected before the answer began.
        num_bytes: bytes written, including heads and framing.
        duration: seconds since its head was complete.
        completed: False if the answer was cut short.
    """

    request: Request
    status: int
    num_bytes: int
    duration: float
    completed: bool


Observer = Callable[[Exchange], None]
