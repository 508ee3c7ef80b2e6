"""Weighs a JSON text without decoding it: how many values it has, how deep they are, and where its
long strings are.

A decoder holds the GIL from its first byte to its last, whichever thread it runs in, and so stops
every stream for as long. What a text would cost it is weighed here beforehand, window by window.
The text need not be valid: the decoder refuses it at the same place at the latest at which this
scan goes astray.
"""

from __future__ import annotations

import re
from mmap import mmap
from typing import Final, NamedTuple

import numpy as np

from fastovms.errors import MalformedBody

MAX_NESTING: Final = 100
"""The most levels of arrays and objects in a body, OVMS's limit."""

MAX_WEIGHT: Final = 500_000
"""The most that all values together may weigh, a plain one being 1. A decoder makes some 20 million
of these a second."""

MAX_STRUCTURE: Final = 8 * 1024 * 1024
"""The most bytes outside of strings, white space included."""

LONG_STRING: Final = 8 * 1024
"""Bytes from which a string counts as long."""

_WINDOW: Final = 64 * 1024
_BACKSLASH: Final = ord("\\")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_NOT_NUMBERS: Final = b"[]{}: \t\r\n" + b"trufalsn"
"""Characters outside of strings that are part of no number. The e of true and false may be an
exponent's, and is not among them."""

_MEMBER: Final = 5
_CONTAINER: Final = 3
_EXACT_NUMBER: Final = 10
_HUGE_NUMBER: Final = 700
"""The weight of a number that takes long to decode, its comma not counted."""

_EXACT_LENGTH: Final = 16
_EXACT: Final = re.compile(rb"[\d.]{16,}|\d[eE]")
"""Numbers for which a decoder may have to do more than one multiplication."""

_HUGE: Final = re.compile(rb"[\d.]{20,}|[eE][+-]?\d{3}")
"""Numbers for which a decoder may need arithmetic of hundreds of digits."""


class Span(NamedTuple):
    """Says where a string's content lies in the text, its quotes left out."""

    start: int
    end: int


def nested_too_deeply() -> MalformedBody:
    return MalformedBody(f"the body is nested more than {MAX_NESTING} levels deep")


def scan(text: bytes | mmap) -> list[Span]:
    """Returns the strings of at least `LONG_STRING` bytes, in order.

    Raises:
        MalformedBody: there are more values than `MAX_WEIGHT` or more levels than `MAX_NESTING`.
    """
    structure = _Structure()
    spans: list[Span] = []
    is_inside = False  # whether the window begins within a string
    start = 0  # where the string's content begins
    at = 0
    while at < len(text):
        end = _window_end(text, at)
        window = text[at:end]
        if b"\\" in window:  # one byte is found faster than two
            window = blotted(window).replace(b'\\"', b"..")
        if is_inside and b'"' not in window:
            at = end
            continue
        parts = window.split(b'"')
        structure.add(b"".join(parts[is_inside::2]), num_strings=len(parts) // 2)
        if is_inside and len(parts) > 1 and at + len(parts[0]) - start >= LONG_STRING:
            spans.append(Span(start, at + len(parts[0])))
        if max(map(len, parts[1:-1]), default=0) >= LONG_STRING:
            spans += _long_parts(parts, at, is_inside)
        is_inside ^= len(parts) % 2 == 0
        if len(parts) > 1:
            start = end - len(parts[-1])
        at = end
    return spans


def blotted(text: bytes) -> bytes:
    """Returns the text, which does not begin within an escape, without escaped backslashes: of
    those left each begins an escape."""
    return text.replace(rb"\\", b"..")


def _window_end(text: bytes | mmap, at: int) -> int:
    """Returns where a window ends: not within an escape."""
    end = at + _WINDOW
    if end >= len(text):
        return len(text)
    if text[end - 1] != _BACKSLASH:
        return end
    window = text[at:end]
    return end + (len(window) - len(window.rstrip(b"\\"))) % 2


def _long_parts(parts: list[bytes], at: int, is_inside: bool) -> list[Span]:
    """Returns the long strings that begin and end within a window."""
    spans = []
    for position, part in enumerate(parts):
        is_whole = 0 < position < len(parts) - 1
        if is_whole and position % 2 == (not is_inside) and len(part) >= LONG_STRING:
            spans.append(Span(at, at + len(part)))
        at += len(part) + 1
    return spans


class _Structure:
    """Counts what is outside of strings."""

    def __init__(self) -> None:
        self._size = 0
        self._weight = 0
        self._depth = 0

    def add(self, text: bytes, *, num_strings: int) -> None:
        """Counts a piece of the text.

        Raises:
            MalformedBody: there is too much, or it is too deep.
        """
        self._size += len(text)
        if self._size > MAX_STRUCTURE:
            raise MalformedBody(f"the body has more than {MAX_STRUCTURE} bytes outside of strings")
        brackets = text.translate(None, _NOT_BRACKETS)
        self._weight += (
            num_strings
            + text.count(b",")
            + _MEMBER * text.count(b":")
            + _CONTAINER * (brackets.count(b"[") + brackets.count(b"{"))
            + _weight_of_numbers(text.translate(None, _NOT_NUMBERS))
        )
        if self._weight > MAX_WEIGHT:
            raise MalformedBody(
                f"the body holds more than {MAX_WEIGHT} values, of which an array or object counts "
                f"as {_CONTAINER}, its member as {_MEMBER}, a number of 16 characters or with an "
                f"exponent as {_EXACT_NUMBER}, and one of 20 digits as {_HUGE_NUMBER}"
            )
        if brackets:
            codes = np.frombuffer(brackets, np.uint8)
            is_opening = (codes == ord("[")) | (codes == ord("{"))
            depths = self._depth + np.cumsum(np.where(is_opening, 1, -1))
            if depths.max() > MAX_NESTING:
                raise nested_too_deeply()
            self._depth = int(depths[-1])


def _weight_of_numbers(text: bytes) -> int:
    """Returns the weight of those numbers that are not plain. The text has only numbers and what is
    between them."""
    longest = max(map(len, text.split(b",")))
    if longest < _EXACT_LENGTH and b"e" not in text and b"E" not in text:
        return 0
    return _EXACT_NUMBER * len(_EXACT.findall(text)) + _HUGE_NUMBER * len(_HUGE.findall(text))
