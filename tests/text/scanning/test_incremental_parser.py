"""Pieces as a parser finds them, and the white space beside markup."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastovms.text.scanning.incremental_parser import IncrementalParser, PieceCollector
from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    Reasoning,
    joined,
)
from fastovms.text.scanning.scanner import Incremental, Scanner


def call(out: PieceCollector) -> None:
    out.begin("f")
    out.arguments("{")
    out.arguments("}")
    out.end(complete=True)


CALL: list[Piece] = [CallBegin(0, "f"), CallArguments(0, "{}"), CallEnd(0, True)]


@pytest.mark.parametrize(
    ("steps", "pieces"),
    [
        ([lambda out: out.content(" a ")], [Content(" a ")]),
        ([lambda out: out.content("a \n"), call], [Content("a"), *CALL]),
        ([call, lambda out: out.content("\n a")], [*CALL, Content("a")]),
        ([lambda out: out.content("a "), call, lambda out: out.content("b")],
         [Content("a"), *CALL, Content(" b")]),
        ([lambda out: out.content(" \n"), call], CALL),
        ([lambda out: out.begin_content(), lambda out: out.content("a"),
          lambda out: out.begin_content(), lambda out: out.content("b")], [Content("a b")]),
        ([lambda out: out.begin_reasoning(), lambda out: out.reasoning("\na\n"),
          lambda out: out.begin_reasoning(), lambda out: out.reasoning("b\n")],
         [Reasoning("a\nb")]),
        ([lambda out: out.content("")], []),
    ],
)  # fmt: skip
def test_white_space_beside_markup_belongs_to_it(
    steps: list[Callable[[PieceCollector], None]], pieces: list[Piece]
) -> None:
    for takes_each in (False, True):
        out = PieceCollector(Scanner())
        found: list[Piece] = []
        for step in steps:
            step(out)
            if takes_each:
                found += out.take()
        out.finish()
        assert joined([*found, *out.take()]) == pieces


def test_white_space_is_told_with_the_text_that_follows() -> None:
    out = PieceCollector(Scanner())
    out.content("a ")
    assert out.take() == [Content("a")]
    out.content("b")
    assert out.take() == [Content(" b")]
    out.content(" ")
    out.finish()
    assert out.take() == [Content(" ")]


def bracketed(scan: Scanner, out: PieceCollector) -> Incremental[None]:
    """Takes what is in brackets for a thought."""
    while (yield from scan.until(("[",), out.content)):
        out.begin_reasoning()
        yield from scan.until(("]",), out.reasoning)
        out.end_reasoning()


def test_a_computation_reads_while_the_text_arrives() -> None:
    parser = IncrementalParser(bracketed)
    pushed = [("a[b", Content("a"), True), ("c]", None, False), ("d", Content("d"), False)]
    for text, piece, in_reasoning in pushed:
        found = parser.push(text)
        assert piece is None or piece in found
        assert parser.in_reasoning is in_reasoning
    assert parser.finish() == []


def test_a_computation_that_never_ends_is_a_defect() -> None:
    def endless(scan: Scanner, out: PieceCollector) -> Incremental[None]:
        while True:
            yield

    with pytest.raises(AssertionError, match="after the end"):
        IncrementalParser(endless).finish()
