"""Keeps JSON on one line for whatever splits text into lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_PIECE: Final = 256 * 1024
_LINE_ENDS: Final = tuple(
    (end.encode(), f"\\u{ord(end):04x}".encode()) for end in "\x85\u2028\u2029"
)
"""What ends a line for Unicode, and its JSON: `str.splitlines` would cut there, as would `httpx`'s
`iter_lines`. JSON always escapes the rest of what they split at."""


def on_one_line(written: bytes) -> bytes:
    """Returns JSON, as orjson writes it, with what ends lines for Unicode escaped. A line feed at
    its end stays. Of a long text each call looks at a piece: it has the GIL meanwhile."""
    if written.isascii():
        return written
    return b"".join(map(_escaped, _pieces(written)))


def _escaped(written: bytes) -> bytes:
    for end, escaped in _LINE_ENDS:
        written = written.replace(end, escaped)  # it stands in a string: nothing else has it
    return written


def _pieces(text: bytes) -> Iterator[bytes]:
    """Yields a text in pieces of whole characters."""
    start = 0
    while start < len(text):
        end = start + _PIECE
        while end < len(text) and text[end] & 0xC0 == 0x80:  # within a character
            end += 1
        yield text[start:end]
        start = end
