"""Reads texts that are one call, or are none, by a reader of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastovms.text.parameters import Tool
from fastovms.text.scanning import Incremental, IncrementalParser, Piece, PieceCollector, Scanner
from tests.text.parsing import parse
from tests.text.tools.checks import cuts

Reader = Callable[[Scanner, PieceCollector], Incremental[bool]]


def read(reader: Reader, text: str, tools: Sequence[Tool] = ()) -> tuple[bool, list[Piece], str]:
    """Whether it was a whole call, the pieces told of it, and what was left to be read: the same
    however the text is cut."""
    found = []
    for parts in cuts(text):
        results: list[tuple[bool, str]] = []

        def start(scan: Scanner, out: PieceCollector, results=results) -> Incremental[None]:
            is_whole = yield from reader(scan, out)
            rest: list[str] = []
            yield from scan.rest(rest.append)
            results.append((is_whole, "".join(rest)))

        pieces = parse(IncrementalParser(start, tools), parts)
        [(is_whole, rest)] = results
        found.append((is_whole, pieces, rest))
    assert all(each == found[0] for each in found)
    return found[0]
