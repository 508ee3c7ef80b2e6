"""Checks of a request's head what httptools leaves to its user (RFC 9112)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fastovms.http.parsing.faults import Fault
from fastovms.http.routing.messages import Request

# RFC 9110 7.2, RFC 3986 3.2.2: a bracketed IP literal or a registered name, then maybe a port.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|([A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*)(:[0-9]*)?")
_ABSOLUTE_TARGET = re.compile(r"https?://([^/?#]+)(/[^?]*)?(?:\?(.*))?", re.IGNORECASE)

# Fields of which a second line would leave two readers to disagree (RFC 9110 5.3).
_SINGLETONS = frozenset(("host", "content-type", "content-encoding", "authorization", "expect"))


def split_target(target: str, method: str) -> tuple[str, str]:
    """Returns path and query of a request target (RFC 9112 3.2).

    Raises:
        Fault: it is malformed.
    """
    if "#" in target:
        raise Fault(400, "a request target has no fragment")
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
    """Checks the fields that routing and framing rest on.

    Returns:
        The size of the body that follows; None = chunked, not known yet.

    Raises:
        Fault: they are wrong, ambiguous, or ask for what is not supported.
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
        # httptools has let nothing but digits pass, of which any number may be leading zeros; int
        # refuses thousands.
        length = int(fields.get("content-length", "0").lstrip("0") or "0")
    elif request.http_version == "1.0":
        raise Fault(400, "Transfer-Encoding is not part of HTTP/1.0")
    elif coding.lower() != "chunked":
        raise Fault(501, "the only transfer coding here is chunked")
    if fields.get("expect", "100-continue").lower() != "100-continue":
        raise Fault(417, "the only expectation here is 100-continue")
    return length


def expects_continue(request: Request, length: int | None) -> bool:
    """Returns whether the client waits for `100 Continue` before its body. HTTP/1.0 has no such
    thing, and its servers must not send it (RFC 9110 10.1.1)."""
    return length != 0 and request.http_version == "1.1" and "expect" in request.headers.by_name


def without_upgrade(
    method: bytes, target: bytes, version: bytes, fields: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """Returns the same head, asking for no upgrade."""
    lines = [b"%b %b HTTP/%b" % (method, target, version)]
    for name, value in fields:
        lowered = name.lower()
        if lowered == b"connection":
            options = [option.strip() for option in value.split(b",")]
            value = b", ".join(o for o in options if o and o.lower() != b"upgrade")
        if lowered != b"upgrade":
            lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"
