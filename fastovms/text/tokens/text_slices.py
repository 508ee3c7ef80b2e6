"""Cuts long texts into slices whose tokens, one after the other, are those of the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_BREAK: Final = re.compile(r"\S( )\S")
"""A single space between two words, of which tokenizers do not put both into one token."""

_WINDOW: Final = 1000
"""In how many characters, at most, such a space is looked for. Text without one is cut anywhere,
which may split a token."""


def slices(
    text: str, first: int, longest: int, *, from_end: bool = False, keeps_spaces: bool = True
) -> Iterator[str]:
    """Yields the slices of a text, in the order in which they stand there.

    Args:
        first: how many characters the first has at most, 2 or more; each may have twice as many as
            the one before it.
        longest: how many characters any has at most.
        from_end: the last one comes first.
        keeps_spaces: whether the space at which the text is cut begins a slice, rather than being
            in none.
    """
    start, end, size = 0, len(text), min(first, longest)
    while end - start > size:
        window = min(_WINDOW, size // 2)
        if from_end:
            before, behind = _cut(text, end - size, end - size + window, keeps_spaces)
            yield text[behind:end]
            end = before
        else:
            before, behind = _cut(text, start + size, start + size - window, keeps_spaces)
            yield text[start:before]
            start = behind
        size = min(2 * size, longest)
    if start < end:
        yield text[start:end]


def _cut(text: str, farthest: int, nearest: int, keeps_spaces: bool) -> tuple[int, int]:
    """Returns where a slice ends and the next one begins, between two positions, the first of which
    it is where no space is."""
    found = _BREAK.search(text, min(farthest, nearest), max(farthest, nearest))
    if found is None:
        return farthest, farthest
    space = found.start(1)
    return space, space if keeps_spaces else space + 1
