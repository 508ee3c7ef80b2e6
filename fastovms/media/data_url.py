"""`data:` URLs (RFC 2397) with base64."""

from __future__ import annotations

import base64
import re
from typing import Final

from fastovms.errors import InvalidField

_HEAD: Final = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.IGNORECASE)
_MAX_HEAD: Final = 256
_PIECE: Final = 1024 * 1024
"""Characters, a multiple of four."""


def decode_data_url(url: str, name: str, *, max_bytes: int) -> bytes:
    """Takes time in proportion to the URL.

    Raises InvalidField: it is malformed, of no image, or holds more than `max_bytes`.
    """
    head = _HEAD.match(url[:_MAX_HEAD])
    if head is None:
        raise InvalidField(f"{name} is a malformed data URL", param=name)
    media_type, options = head[1].strip().lower(), head[2].lower().split(";")
    if media_type and not media_type.startswith("image/"):
        raise InvalidField(f"{name} must be an image, not {media_type[:80]}", param=name)
    if "base64" not in (option.strip() for option in options):
        raise InvalidField(f"{name} must be a data URL in base64", param=name)
    num_chars = len(url) - head.end()
    if num_chars // 4 * 3 > max_bytes + 3:
        raise too_large(name, max_bytes)
    data = _decode(url, head.end(), name)
    if len(data) > max_bytes:
        raise too_large(name, max_bytes)
    return data


def _decode(url: str, start: int, name: str) -> bytes:
    """In pieces, since each holds the GIL."""
    end = len(url.rstrip())
    data = bytearray()
    try:
        if "=" in url[start : end - 2]:
            raise ValueError("padding before the end")
        for at in range(start, end, _PIECE):
            data += base64.b64decode(url[at : min(at + _PIECE, end)], validate=True)
    except ValueError as error:
        raise InvalidField(f"{name} has malformed base64", param=name) from error
    return bytes(data)


def too_large(name: str, max_bytes: int) -> InvalidField:
    return InvalidField(f"{name} must be at most {max_bytes} bytes", param=name)
