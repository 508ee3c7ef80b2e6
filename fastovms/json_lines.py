"""Keeps JSON on one line for whatever splits text into lines."""

from __future__ import annotations

from typing import Final

_LINE_ENDS: Final = tuple(
    (end.encode(), f"\\u{ord(end):04x}".encode()) for end in "\x85\u2028\u2029"
)
"""What ends a line for Unicode, and its JSON: `str.splitlines` would cut there, as would `httpx`'s
`iter_lines`. JSON always escapes the rest of what they split at."""


def on_one_line(written: bytes) -> bytes:
    """Returns JSON, as orjson writes it, with what ends lines for Unicode escaped. A line feed at
    its end stays."""
    for end, escaped in _LINE_ENDS:
        written = written.replace(end, escaped)  # it stands in a string: nothing else has it
    return written
