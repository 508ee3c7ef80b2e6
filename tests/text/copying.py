"""Reads values out of texts, however these are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastovms.text.scanning import Incremental, Scanner
from fastovms.text.values import Copy
from tests.text.tools.checks import cuts


class Copied(NamedTuple):
    """What was told of a text, whether it was a whole value, and what was left to be read."""

    told: str
    is_whole: object
    rest: str


def read_whole(scan: Scanner, steps: Incremental[object], texts: Sequence[str]) -> object:
    """What the steps return when fed with texts, all of which the scanner has got then."""
    result, is_done = None, False
    for text in (*texts, None):
        if text is None:
            scan.end()
        else:
            scan.feed(text)
        if not is_done:
            try:
                next(steps)
            except StopIteration as end:
                result, is_done = end.value, True
    assert is_done, "steps go on after the end"
    return result


def rest_of(scan: Scanner) -> str:
    pieces: list[str] = []
    for _ in scan.rest(pieces.append):
        raise AssertionError("the scanner waits after the end")
    return "".join(pieces)


def copied(copy: Copy, text: str) -> Copied:
    """What `copy` makes of a text: the same for all its cuts."""
    found = set()
    for parts in cuts(text):
        told: list[str] = []
        scan = Scanner()
        is_whole = read_whole(scan, copy(scan, told.append), parts)
        found.add(Copied("".join(told), is_whole, rest_of(scan)))
    [same] = found
    return same
