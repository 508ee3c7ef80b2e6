"""Parses HTTP requests: heads, framing and errors, by RFC 9112."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Callable, Iterable
from enum import Enum, auto
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final, Protocol

import httptools

from fastovms.config import HttpConfig
from fastovms.errors import shortage_of
from fastovms.fair_queue import Shares
from fastovms.http.messages import BodySink, HeaderPairs, Headers, Request
from fastovms.telemetry.tracing import TraceContext

_METHOD_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+( |$)")


class Fault(Exception):
    """A request that cannot be served; the connection ends after the answer.

    Attributes:
        request: the invalid request, as far as it was read.
        answered: False = the connection is closed without an answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        request: Request | None = None,
        headers: HeaderPairs = (),
        answered: bool = True,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.request = request
        self.headers = headers
        self.answered = answered


class InputRefused(Exception):
    """Raised by a sink that has sent the answer and refuses further input."""


def large_body_fault(limit: int) -> Fault:
    """Returns the fault of a body, announced or read, of more than `limit` bytes (RFC 9110
    15.5.14)."""
    return Fault(413, f"the body is larger than {limit} bytes")


def parse_fault(error: httptools.HttpParserError) -> Fault:
    """Returns the client error for an error of httptools."""
    if str(error).startswith("Pause on PRI"):
        return Fault(505, "HTTP/2 is not supported here")
    return Fault(400, f"malformed request: {error}")


def method_fault(line: bytes | None) -> Fault:
    """Returns the fault for a request line with an unknown or missing method (RFC 9110 9.1). `line`
    is the beginning of the request line, or None if its position is unknown."""
    if line is None:
        return Fault(400, "malformed request line")
    if line[:2] == b"\x16\x03":
        return Fault(400, "TLS on a plaintext port", answered=False)
    if _METHOD_TOKEN.match(line[:256].lstrip(b"\r\n")):
        return Fault(501, "unknown request method")
    return Fault(400, "malformed request line")


# RFC 9110 7.2, RFC 3986 3.2.2: a bracketed IP literal or a registered name, then maybe a port.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|([A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*)(:[0-9]*)?")
_ABSOLUTE_TARGET = re.compile(r"https?://([^/?#]+)(/[^?]*)?(?:\?(.*))?", re.IGNORECASE)

# A second line of these fields would be ambiguous: other readers may use another one (RFC 9110
# 5.3).
_SINGLETONS = frozenset(("host", "content-type", "content-encoding", "authorization", "expect"))


def split_target(target: str, method: str) -> tuple[str, str]:
    """Returns (path, query) of a request target (RFC 9112 3.2). Raises Fault if the target is
    malformed."""
    if "#" in target:
        raise Fault(400, "a request target must not have a fragment")
    if target[:1] == "/":
        path, _, query = target.partition("?")
        return path, query
    if target == "*":
        if method != "OPTIONS":
            raise Fault(400, "the target * is for OPTIONS only")
        return target, ""
    absolute = _ABSOLUTE_TARGET.fullmatch(target)
    if absolute is None or not _HOST.fullmatch(absolute[1]):
        raise Fault(400, "invalid request target")
    # OPTIONS with neither path nor query asks about the server (RFC 9112 3.2.4).
    path = absolute[2] or ("*" if method == "OPTIONS" and absolute[3] is None else "/")
    return path, absolute[3] or ""


def body_length(request: Request) -> int | None:
    """Checks the header fields needed for routing and framing, and returns the body's length.
    Raises Fault if the fields are invalid, ambiguous, or require an unsupported feature.

    Returns:
        The size of the body that follows; None = chunked, not known yet.
    """
    for name in request.headers.repeated():
        if name in _SINGLETONS:
            raise Fault(400, f"more than one {name} field")
    fields = request.headers.by_name
    host = fields.get("host")
    if host is None:
        if request.http_version == "1.1":
            raise Fault(400, "a Host field is required")
    elif not _HOST.fullmatch(host):
        raise Fault(400, "invalid Host field")
    coding = fields.get("transfer-encoding")
    length: int | None = None
    if coding is None:
        # httptools accepts only digits. Leading zeros are removed, because `int` refuses thousands
        # of digits.
        length = int(fields.get("content-length", "0").lstrip("0") or "0")
    elif request.http_version == "1.0":
        raise Fault(400, "Transfer-Encoding is not part of HTTP/1.0")
    elif coding.lower() != "chunked":
        raise Fault(501, "the only supported transfer coding is chunked")
    if fields.get("expect", "100-continue").lower() != "100-continue":
        raise Fault(417, "the only supported expectation is 100-continue")
    return length


def expects_continue(request: Request, length: int | None) -> bool:
    """Returns whether the client waits for `100 Continue` before its body. Must not be sent to
    HTTP/1.0 clients (RFC 9110 10.1.1)."""
    return length != 0 and request.http_version == "1.1" and "expect" in request.headers.by_name


def without_upgrade(
    method: bytes, target: bytes, version: bytes, fields: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """Returns the head without a request for an upgrade."""
    lines = [b"%b %b HTTP/%b" % (method, target, version)]
    for name, value in fields:
        lowered = name.lower()
        if lowered == b"connection":
            options = [option.strip() for option in value.split(b",")]
            value = b", ".join(o for o in options if o and o.lower() != b"upgrade")
        if lowered != b"upgrade":
            lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"


# 3.2: lower-case hexadecimal digits only. A version behind 00 may have further fields.
_TRACEPARENT: Final = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})"
    r"-(?!0{32})(?P<trace_id>[0-9a-f]{32})"
    r"-(?!0{16})(?P<parent_id>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?",
    re.ASCII,
)
_SAMPLED: Final = 0x01
_MAX_STATE: Final = 8 * 1024
"""The maximum length of `tracestate` in characters; 3.3.1.5 requires 512."""


def trace_context(headers: Headers) -> TraceContext | None:
    """Returns the trace context in `traceparent` and `tracestate`, with a new id for the request's
    span; None without a valid `traceparent` (3.2.4)."""
    parent = headers.by_name.get("traceparent")
    if parent is None:
        return None
    found = _TRACEPARENT.fullmatch(parent)
    if found is None or (found["version"] == "00" and found["more"] is not None):
        return None
    state = headers.by_name.get("tracestate", "")
    return TraceContext(
        trace_id=found["trace_id"],
        span_id=_new_span_id(),
        parent_id=found["parent_id"],
        is_sampled=bool(int(found["flags"], 16) & _SAMPLED),
        state=state if len(state) <= _MAX_STATE else "",
    )


def _new_span_id() -> str:
    while not int(span_id := secrets.token_hex(8), 16):
        pass  # 3.2.2.4: all zeroes stand for none
    return span_id


_BYTES_PER_BYTE: Final = 5
"""The memory in bytes per byte of a body while it is decoded and rendered."""

_PLENTY: Final = 4 * _BYTES_PER_BYTE
_ALWAYS_FREE: Final = 4 * 1024 * 1024
_LOOK_INTERVAL: Final = 0.1
"""Seconds between two measurements of the free memory."""


class BodyBudget(Shares):
    """Limits the memory of request bodies.

    A client may hold at most as many bytes as are still free: half of all if it is alone, a third
    if another client holds a third, and so on.

    Args:
        limit: the maximum for all bodies, in bytes.
        memory_left: returns the bytes that the process may still allocate within its own limits. A
            low value lowers the maximum, since decoding a body takes several times its size.
        clock: returns seconds.
    """

    def __init__(
        self,
        limit: int,
        memory_left: Callable[[], float] = lambda: math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(0, limit)
        self._limit = limit
        self._memory_left = memory_left
        self._clock = clock
        self._looked_at = -math.inf
        self._is_bounded = memory_left() < _PLENTY * limit

    def take(self, owner: str, size: int = 1) -> bool:
        if self._is_bounded and self.used + size > _ALWAYS_FREE:
            self._look()
        return super().take(owner, size)

    def _look(self) -> None:
        """Updates the maximum by the free memory, if the last measurement, which is slow, is
        old."""
        now = self._clock()
        if now - self._looked_at >= _LOOK_INTERVAL:
            self._looked_at = now
            allowed = self.used + int(self._memory_left() / _BYTES_PER_BYTE)
            self.most = min(self._limit, max(2 * _ALWAYS_FREE, allowed))


MAPPED: Final = 1024 * 1024
"""The size in bytes from which a body is stored in a memory mapping."""


class BodyBuffer:
    """Collects the pieces of a body without copying all of it at once. Joining 60 MB takes 50 ms,
    most of it in the kernel, and blocks the event loop.

    A large body is in an anonymous memory mapping, which the kernel can enlarge without copying,
    and whose memory is returned to the operating system at once.
    """

    __slots__ = ("_mapping", "_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._mapping: mmap | None = None
        self._size = 0

    def append(self, piece: bytes) -> None:
        """Adds a piece of the body."""
        self._size += len(piece)
        if self._mapping is None:
            self._pieces.append(piece)
            if self._size < MAPPED:
                return
            self._mapping = mmap(-1, 2 * self._size, MAP_PRIVATE | MAP_ANONYMOUS)
            piece = b"".join(self._pieces)
            self._pieces.clear()
        elif self._size > len(self._mapping):
            self._mapping.resize(2 * self._size)  # unwritten pages take no memory
        self._mapping.write(piece)

    def take(self) -> bytes | mmap:
        """Returns the content. The buffer must not be used afterwards."""
        mapping, pieces = self._mapping, self._pieces
        if mapping is None:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        mapping.resize(self._size)
        return mapping


class RequestSink(Protocol):
    """Receives the events of a parser, in order. Each method may raise `Fault`."""

    def on_head(self, request: Request, content_length: int | None) -> bool:
        """Receives a complete and valid head. Raises InputRefused if the answer has been sent, and
        no more input must be read.

        Args:
            content_length: the size of the body that follows; None = chunked, not known yet.

        Returns:
            Whether the body is needed; otherwise it is read and discarded.
        """

    def on_request(self, request: Request, keep_alive: bool) -> None:
        """Receives a complete request."""

    def on_fault(self, fault: Fault) -> None:
        """Receives the fault that ends the input. No other call follows."""


class ParserPhase(Enum):
    """The parser's position in the input. BETWEEN: before the first byte of the next request."""

    BETWEEN = auto()
    HEAD = auto()
    BODY = auto()
    DONE = auto()


# Look-ups in an Enum class are slow.
_BETWEEN, _BODY, _DONE = ParserPhase.BETWEEN, ParserPhase.BODY, ParserPhase.DONE


# A parser without callbacks.
_INERT = httptools.HttpRequestParser(None)


class RequestParser:
    """Parses the bytes of one connection and passes events to a sink.

    Has neither a socket nor a clock. httptools parses the grammar; sizes are limited here (413,
    414, 431), and the module's functions add the checks that httptools leaves to its user.

    Attributes:
        phase: DONE = the rest of the input is ignored.
        body_size: bytes of the current body so far.
        awaiting_continue: whether the client waits for `100 Continue` before it sends the body (RFC
            9110 10.1.1). Cleared by the first byte of the body, or when it is answered.
    """

    _url: bytes
    _fields: list[tuple[bytes, bytes]]
    _body: BodyBuffer | None
    _current: Request | None

    def __init__(self, config: HttpConfig, budget: BodyBudget, sink: RequestSink) -> None:
        self._config = config
        self._budget = budget
        self._sink: RequestSink | None = sink
        self.phase = _BETWEEN
        self.body_size = 0
        self.awaiting_continue = False
        self._parser = self._new_parser()
        self._raw_size = 0  # bytes fed since the phase began, in whole reads
        self._num_requests = 0
        # Values of `body_size` and `_raw_size` when the last whole chunk line had been read.
        self._chunk_start = -1
        self._raw_before_chunk = 0
        self._held = 0  # bytes taken from the budget for the current body
        self._asks_websocket = False
        self._begin_message()

    def feed(self, data: bytes) -> None:
        """Parses more input; calls the sink."""
        phase = self.phase
        if phase is _DONE:
            return
        num_requests = self._num_requests
        try:
            self._parse(data)
        except httptools.HttpParserCallbackError as error:
            self._stop(error.__context__ or error)
        except httptools.HttpParserInvalidMethodError:
            at_start = phase is _BETWEEN and num_requests == self._num_requests
            self._stop(method_fault(data if at_start else None))
        except httptools.HttpParserError as error:
            self._stop(parse_fault(error))
        except (Fault, InputRefused) as error:
            self._stop(error)

    @property
    def body_sink(self) -> BodySink | None:
        """The receiver of the current body; None = the body is kept in memory."""
        return None if self._current is None else self._current.sink

    def unfinished(self) -> Request | None:
        """Returns the request that is being read, as far as it is known; None = none."""
        if self._current is not None or not self._url:
            return self._current
        method: str = self._parser.get_method().decode()
        return Request(method, self._url.decode("latin-1").partition("?")[0])

    def close(self) -> None:
        """Drops the sink and the unfinished request, to break reference cycles."""
        self.phase = _DONE
        if self._held:
            assert self._current is not None
            self._budget.give_back(self._current.sender, self._held)
            self._held = 0
        if self.body_sink is not None:
            self.body_sink.close()
        self._sink = None
        self._parser = _INERT
        self._begin_message()

    # Called by httptools

    def on_message_begin(self) -> None:
        self.phase = ParserPhase.HEAD

    def on_url(self, url: bytes) -> None:
        self._url += url
        # The line also has the method, two spaces and the version.
        if len(self._url) + 24 > self._config.max_request_line:
            raise Fault(414, "the request line is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        fields = self._fields
        fields.append((name, value))
        if len(fields) > self._config.max_header_fields:
            raise Fault(431, f"more than {self._config.max_header_fields} header fields")

    def on_headers_complete(self) -> None:
        parser = self._parser
        method: str = parser.get_method().decode()
        version = parser.get_http_version()
        if version != "1.1" and version != "1.0":
            if version[0] != "1":
                raise Fault(505, f"HTTP/{version} is not supported")
            version = "1.1"
        if parser.should_upgrade():
            if method == "CONNECT":
                raise Fault(501, "CONNECT is not supported")
            # httptools skips the body of an upgrade request: it is read again without the Upgrade
            # field (RFC 9110 7.8 lets a server ignore it), and only then checked.
            return
        self._check_fields()
        headers = Headers(
            [(name.decode(), value.decode("latin-1").rstrip(" \t")) for name, value in self._fields]
        )
        self._fields.clear()  # from here on it collects trailers, which are ignored
        path, query = split_target(self._url.decode("latin-1"), method)
        request = Request(method, path, query, headers, http_version=version)
        request.wants_websocket, self._asks_websocket = self._asks_websocket, False
        self._current = request
        length = body_length(request)
        self.awaiting_continue = expects_continue(request, length)
        self.phase = _BODY
        self._raw_size = 0
        self._chunk_start = -1
        if self._sink is not None:
            self._wanted = self._sink.on_head(request, length)
        sink = request.sink
        self._max_size = self._config.largest_body if sink is None else sink.max_size
        if length is not None and length > self._max_size:
            raise large_body_fault(self._max_size)

    def on_chunk_header(self) -> None:
        self._chunk_start = self.body_size
        self._raw_before_chunk = self._raw_size

    def on_body(self, data: bytes) -> None:
        self.awaiting_continue = False
        self.body_size += len(data)
        if self.body_size > self._max_size:
            raise large_body_fault(self._max_size)
        if self._wanted:
            assert self._current is not None
            if self._current.sink is not None:
                self._current.sink.write(data)
                return
            if not self._budget.take(self._current.sender, len(data)):
                retry = (("Retry-After", "1"),)
                raise Fault(503, "too many request bodies of this client in memory", headers=retry)
            self._held += len(data)
            if self._body is None:
                self._body = BodyBuffer()
            self._body.append(data)

    def on_message_complete(self) -> None:
        request = self._current
        if request is None or self._sink is None:
            return
        if self._fields:  # trailers
            self._check_fields()
        if self._body is not None:
            request.body = self._body.take()
        self._held = 0  # the sink returns them to the budget from now on
        self._num_requests += 1
        keep_alive = self._parser.should_keep_alive()
        self._begin_message()
        self.phase = _BETWEEN if keep_alive else _DONE
        self._raw_size = 0
        self._sink.on_request(request, keep_alive)
        if self._sink is None:
            raise InputRefused  # this request closed the connection: ignore later ones

    def _check_fields(self) -> None:
        """Limits the size of a head's fields, or of a chunked body's trailers."""
        size = sum([len(name) + len(value) for name, value in self._fields])
        if size + 4 * len(self._fields) + len(self._url) > self._config.max_head:
            raise self._oversized_head()

    def _oversized_head(self) -> Fault:
        part = "head" if self._current is None else "trailer section"
        return Fault(431, f"the {part} is larger than {self._config.max_head} bytes")

    def _check_raw_size(self) -> None:
        """Limits the input that httptools buffers or skips without a callback: blank lines, endless
        fields and chunk extensions."""
        config = self._config
        size = self._raw_size
        if size <= config.max_request_line or self.phase is _DONE:
            return
        if self.phase is _BODY:
            if self._chunk_start == self.body_size:  # the chunk without data, before the trailers
                if size - self._raw_before_chunk > config.max_head:
                    raise self._oversized_head()
            elif size > config.max_head + 2 * self.body_size:
                # Extensions and one-byte chunks cause more work than their content. Chunk lines may
                # therefore have at most as many bytes as the content, and one head more.
                raise Fault(400, "the framing of the chunks is larger than their content")
        elif self.phase is _BETWEEN:
            raise Fault(400, "too many blank lines before a request")
        elif not self._url:
            raise Fault(414, "the request line is too long")
        elif size > config.max_head:
            raise self._oversized_head()

    # The parser's own state

    def _parse(self, data: bytes) -> None:
        rest: list[bytes | memoryview] = [data]
        while rest and self.phase is not _DONE:
            part = rest.pop()
            self._raw_size += len(part)
            try:
                self._parser.feed_data(part)
                self._check_raw_size()
            except httptools.HttpParserUpgrade as upgrade:
                offset: int = upgrade.args[0]
                rest.append(memoryview(part)[offset:])
                rest.append(self._without_upgrade())

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # An unsupported version gets 505 here. Data after `Connection: close` is not read.
        parser.set_dangerous_leniencies(lenient_version=True, lenient_data_after_close=True)
        return parser

    def _begin_message(self) -> None:
        self._url = b""
        self._fields = []
        self._body = None
        self._current = None
        self._wanted = True
        self._max_size = 0
        self.body_size = 0
        self.awaiting_continue = False

    def _without_upgrade(self) -> bytes:
        """Returns the current head without its upgrade fields, and creates a new parser for it."""
        parser = self._parser
        version = parser.get_http_version().encode()
        head = without_upgrade(parser.get_method(), self._url, version, self._fields)
        self._asks_websocket = parser.get_method() == b"GET" and any(
            name.lower() == b"upgrade" and value.strip().lower() == b"websocket"
            for name, value in self._fields
        )
        self._parser = self._new_parser()
        self._begin_message()
        self._raw_size = 0
        return head

    def _stop(self, error: BaseException) -> None:
        sink, request = self._sink, self.unfinished()
        self.close()
        if (shortage := shortage_of(error)) is not None:
            error = Fault(503, str(shortage), headers=(("Retry-After", "1"),))
        if isinstance(error, Fault):
            error.request = error.request or request
            if sink is not None:
                sink.on_fault(error)
        elif not isinstance(error, InputRefused):
            raise error
