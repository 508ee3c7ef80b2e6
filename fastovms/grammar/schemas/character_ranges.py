"""Reckons with sets of characters, as ranges of code points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

Ranges = list[tuple[int, int]]
"""Code points from the first to the last of each pair, ascending."""

_LAST: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)
ALL: Final[Ranges] = [(0, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, _LAST)]

_DIGITS: Final[Ranges] = [(48, 57)]
_WORD: Final[Ranges] = [(48, 57), (65, 90), (95, 95), (97, 122)]
_SPACE: Final[Ranges] = [
    (9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
]  # fmt: skip

_CATEGORIES: Final = {"DIGIT": _DIGITS, "WORD": _WORD, "SPACE": _SPACE}


def ranges_of(members: Sequence[Any]) -> Ranges:
    """Returns the characters of a class, as the parser of `re` gives its members."""
    found: Ranges = []
    for kind, value in members:
        match str(kind):
            case "LITERAL":
                found.append((value, value))
            case "RANGE":
                found.append(value)
            case "CATEGORY":
                name = str(value).removeprefix("CATEGORY_")
                ranges = _CATEGORIES[name.removeprefix("NOT_")]
                found += without(ranges) if name.startswith("NOT_") else ranges
    is_negated = bool(members) and str(members[0][0]) == "NEGATE"
    return without(found) if is_negated else merged(found)


def merged(ranges: Ranges) -> Ranges:
    """Returns the same characters as ascending ranges with gaps between them."""
    found: Ranges = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def without(ranges: Ranges) -> Ranges:
    """Returns all other characters."""
    found: Ranges = []
    for first, last in ALL:
        low = first
        for start, end in merged(ranges):
            if low < start <= last:
                found.append((low, min(start - 1, last)))
            low = max(low, end + 1)
        if low <= last:
            found.append((low, last))
    return found


def common(first: Ranges, second: Ranges) -> Ranges:
    """Returns the characters that are in both."""
    return [
        (max(low, start), min(high, end))
        for low, high in first
        for start, end in second
        if max(low, start) <= min(high, end)
    ]
