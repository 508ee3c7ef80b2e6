"""Decodes images in `data:` URLs with base64 (RFC 2397)."""

from __future__ import annotations

import base64
import re
from typing import Final

from fastovms.errors import InvalidField

_HEAD: Final = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.IGNORECASE)
_MAX_HEAD: Final = 256
_PIECE: Final = 1024 * 1024
"""Characters that are decoded at a time; a multiple of four."""

_UNKNOWN_TYPES: Final = ("", "application/octet-stream", "binary/octet-stream")
"""Media types that clients name when they have not looked."""

_EQUIVALENTS: Final = (
    *((space, "") for space in "\n\r\t "),
    *((f"%{ord(char):02{case}}", char) for char in "+/=" for case in "xX"),
)
"""What else base64 within a URL may have: broken lines (RFC 2045, 6.8) and escaped characters (RFC
3986)."""


def decode_data_url(url: str, name: str, *, max_bytes: int) -> bytes:
    """Returns the content of a URL, in time proportional to its length.

    Raises:
        InvalidField: it is malformed, of no image, or holds more than `max_bytes`.
    """
    head = _HEAD.match(url[:_MAX_HEAD])
    if head is None:
        raise InvalidField(f"{name} is a malformed data URL", param=name)
    media_type, options = head[1].strip().lower(), head[2].lower().split(";")
    if media_type not in _UNKNOWN_TYPES and not media_type.startswith("image/"):
        raise InvalidField(f"{name} must be an image, not {media_type[:80]}", param=name)
    if "base64" not in (option.strip() for option in options):
        raise InvalidField(f"{name} must be a data URL in base64", param=name)
    encoded = url[head.end() :]
    for text, plain in _EQUIVALENTS:
        encoded = encoded.replace(text, plain)
    if len(encoded) // 4 * 3 > max_bytes + 3:
        raise too_large(name, max_bytes)
    data = _decode(encoded, name)
    if len(data) > max_bytes:
        raise too_large(name, max_bytes)
    return data


def _decode(encoded: str, name: str) -> bytes:
    """Decodes base64 in pieces, since each holds the GIL."""
    data = bytearray()
    try:
        if "=" in encoded[:-2]:
            raise ValueError("padding before the end")
        for at in range(0, len(encoded), _PIECE):
            data += base64.b64decode(encoded[at : at + _PIECE], validate=True)
    except ValueError as error:
        raise InvalidField(f"{name} has malformed base64", param=name) from error
    return bytes(data)


def too_large(name: str, max_bytes: int) -> InvalidField:
    return InvalidField(f"{name} must be at most {max_bytes} bytes", param=name)
