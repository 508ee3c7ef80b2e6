"""Renders response heads: status line, the fields every answer has, framing (RFC 9112 6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus

from fastovms.http.routing.messages import HeaderPairs, Request, Response, StreamHead

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
    """Turns responses into bytes. It keeps the part that changes only once a second.

    Args:
        clock: tells unix time in seconds, for the Date field.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._second = 0
        self._beginnings: dict[tuple[int, str], str] = {}

    def render(
        self, response: Response, request: Request, *, close: bool, extra: HeaderPairs = ()
    ) -> bytes:
        """Returns a whole message. The answer to HEAD and statuses without content stop at the
        head."""
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
        """Returns the head of a message of a known length, or of a chunked one, or of one that ends
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
        # OpenAI's clients read the first of the two, Anthropic's the other.
        ids = f"X-Request-Id: {request.id}\r\nRequest-Id: {request.id}\r\n"
        return f"{beginning}{fields}{ids}\r\n".encode("latin-1")

    def _beginning(self, status: int, content_type: str) -> str:
        """Returns the lines up to Content-Type, which is "" for answers without content."""
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
    """Returns field lines.

    Raises:
        ValueError: a name is not a token (RFC 9110 5.1), or one of the fields that are written here
            and must not come twice: the handler's mistake.
    """
    lines = []
    for name, value in headers:
        if not name or not _TOKEN_CHARACTERS.issuperset(name):
            raise ValueError(f"{name!r} is not a header field name")
        if name.lower() in _OWN_FIELDS:
            raise ValueError(f"the server itself writes the field {name!r}")
        lines.append(f"{name}: {clean(value)}\r\n")
    return "".join(lines)


def clean(value: str) -> str:
    """Returns the value with every character that could end or corrupt a field line made a space
    (RFC 9110 5.5), and those outside latin-1 a question mark."""
    if value.isascii() and value.isprintable():
        return value
    spaced = "".join(
        " " if character < " " or character == "\x7f" else character for character in value
    )
    return spaced.encode("latin-1", "replace").decode("latin-1")
