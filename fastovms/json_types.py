"""JSON types with the names of JSON Schema, resolution of `$ref`, and JSON on one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote

_INDEX = re.compile("[0-9]{1,9}")


def json_type(value: object) -> str:
    """Returns the JSON Schema type of a decoded value, such as "integer"."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"


def resolve(reference: str, root: object) -> object:
    """Returns the part of a document to which a JSON reference within it points (RFC 6901 6).

    Raises:
        LookupError: the target does not exist, or is outside the document.
    """
    start, *keys = unquote(reference).split("/")
    if start != "#":
        raise LookupError(reference)
    target = root
    for key in keys:
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target[key]
        elif isinstance(target, list) and _INDEX.fullmatch(key):
            target = target[int(key)]
        else:
            raise LookupError(reference)
    return target


_PIECE: Final = 256 * 1024
_LINE_ENDS: Final = tuple(
    (end.encode(), f"\\u{ord(end):04x}".encode()) for end in "\x85\u2028\u2029"
)
"""Unicode line separators, and their JSON escapes. `str.splitlines` and `httpx`'s `iter_lines`
split there; JSON always escapes the other characters at which they split."""


def on_one_line(written: bytes) -> bytes:
    """Returns JSON from orjson with Unicode line separators escaped. A final line feed is kept.
    Long JSON is processed in pieces, because each step holds the GIL."""
    if written.isascii():
        return written
    return b"".join(map(_escaped, _pieces(written)))


def _escaped(written: bytes) -> bytes:
    for end, escaped in _LINE_ENDS:
        written = written.replace(end, escaped)  # in JSON, these characters occur only in strings
    return written


def _pieces(text: bytes) -> Iterator[bytes]:
    """Yields UTF-8 text in pieces of whole characters."""
    start = 0
    while start < len(text):
        end = start + _PIECE
        while end < len(text) and text[end] & 0xC0 == 0x80:  # do not split a character
            end += 1
        yield text[start:end]
        start = end
