"""Calls in a list, here of single letters."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.output import Content
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.tools.calls.call_list import read_list
from tests.text.tools.calls.reading import read
from tests.text.tools.checks import call


def letter(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[bool]:
    name = yield from scan.peek()
    if not name.isalpha():
        out.content(opening)
        return False
    yield from scan.read(1)
    out.begin(name)
    out.arguments("{}")
    out.end(complete=True)
    return True


A, B = call(0, "a", "{}"), call(1, "b", "{}")


@pytest.mark.parametrize(
    ("text", "is_whole", "pieces", "rest"),
    [
        ("a]x", True, A, "x"),
        (" a , b ] ", True, A + B, " "),
        ("a b]", False, A, "b]"),
        ("a, 1]", False, [*A, Content(", ")], "1]"),
        ("]", False, [Content("[")], "]"),
        ("a", False, A, ""),
    ],
)
def test_lists(text: str, is_whole: bool, pieces: list[object], rest: str) -> None:
    found = read(lambda scan, out: read_list(scan, out, "[", letter), text)
    assert found == (is_whole, pieces, rest)
