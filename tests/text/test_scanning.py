"""Tests of `fastovms/text/scanning.py`."""

from __future__ import annotations

import pytest

from fastovms.text.scanning import (
    Incremental,
    IncrementalParser,
    PieceCollector,
    Scanner,
)


def test_only_the_beginning_of_a_tag_is_held_back() -> None:
    told: list[str] = []
    scan = Scanner()
    steps = scan.until(("<tag>",), told.append)
    for text in ("ab", "<", "<ta", "x<tag", "> more"):
        scan.feed(text)
        next(steps, None)
    assert told == ["ab", "<", "<tax"]


def test_incremental_parser_that_never_ends_raises() -> None:
    def endless(scan: Scanner, out: PieceCollector) -> Incremental[None]:
        while True:
            yield

    with pytest.raises(AssertionError, match="after the end"):
        IncrementalParser(endless).finish()
