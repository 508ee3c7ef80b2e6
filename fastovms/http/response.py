"""Renders response heads: status line, the fields every answer has, framing (RFC 9112 6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus

from fastovms.http.messages import HeaderPairs, Request, Response

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_TOKEN_CHARACTERS = frozenset(
    "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ResponseWriter:
    """Turns responses into bytes. Keeps the part that changes only once a second.

    Args:
        clock: unix time in seconds, for the Date field.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._second = 0
        self._beginnings: dict[int, str] = {}

    def render(
        self, response: Response, request: Request, *, close: bool, extra: HeaderPairs = ()
    ) -> bytes:
        """A whole message. The answer to HEAD and statuses without content stop at the head."""
        status = response.status
        if status == 204 or status == 304:
            # RFC 9110 8.6: no Content-Length on a 204; a 304 may leave it out.
            return self._head(status, "", request, close, response.headers + extra)
        body = response.body
        framing = f"Content-Type: {clean(response.content_type)}\r\nContent-Length: {len(body)}\r\n"
        head = self._head(status, framing, request, close, response.headers + extra)
        return head if request.method == "HEAD" else head + body

    def render_stream_head(
        self,
        status: int,
        content_type: str,
        headers: HeaderPairs,
        request: Request,
        *,
        close: bool,
        chunked: bool,
        extra: HeaderPairs = (),
    ) -> bytes:
        """The head of a chunked message, or of one that ends with the connection (HTTP/1.0)."""
        framing = f"Content-Type: {clean(content_type)}\r\n"
        if chunked:
            framing += "Transfer-Encoding: chunked\r\n"
        return self._head(status, framing, request, close, headers + extra)

    def _head(
        self, status: int, fields: str, request: Request, close: bool, more: HeaderPairs
    ) -> bytes:
        if close:
            fields += "Connection: close\r\n"
        elif request.http_version == "1.0":
            fields += "Connection: keep-alive\r\n"
        if more:
            fields += render_fields(more)
        beginning = self._beginning(status)
        return f"{beginning}{fields}X-Request-Id: {request.id}\r\n\r\n".encode("latin-1")

    def _beginning(self, status: int) -> str:
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._beginnings.clear()
        beginning = self._beginnings.get(status)
        if beginning is None:
            reason = _REASONS.get(status, "")
            date = formatdate(second, usegmt=True)
            beginning = f"HTTP/1.1 {status} {reason}\r\nDate: {date}\r\n"
            self._beginnings[status] = beginning
        return beginning


def render_fields(headers: HeaderPairs) -> str:
    """Field lines.

    Raises:
        ValueError: a name is not a token (RFC 9110 5.1): the handler's mistake.
    """
    lines = []
    for name, value in headers:
        if not name or not _TOKEN_CHARACTERS.issuperset(name):
            raise ValueError(f"{name!r} is not a header field name")
        lines.append(f"{name}: {clean(value)}\r\n")
    return "".join(lines)


def clean(value: str) -> str:
    """The value with every character that could end or corrupt a field line made a space
    (RFC 9110 5.5), and those outside latin-1 a question mark."""
    if value.isascii() and value.isprintable():
        return value
    spaced = "".join(
        " " if character < " " or character == "\x7f" else character for character in value
    )
    return spaced.encode("latin-1", "replace").decode("latin-1")
