"""Pieces of an answer, joined."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    PlainParser,
    Reasoning,
    joined,
)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], []),
        ([Content("a"), Content("b"), Reasoning("c")], [Content("ab"), Reasoning("c")]),
        (
            [CallArguments(0, "a"), CallArguments(0, "b"), CallArguments(1, "c")],
            [CallArguments(0, "ab"), CallArguments(1, "c")],
        ),
        (
            [CallBegin(0, "f"), CallEnd(0, True), CallBegin(1, "f"), CallEnd(1, True)],
            [CallBegin(0, "f"), CallEnd(0, True), CallBegin(1, "f"), CallEnd(1, True)],
        ),
        ([Content("a"), CallBegin(0, "f"), Content("b")], [Content("a"), CallBegin(0, "f"),
                                                           Content("b")]),
    ],
)  # fmt: skip
def test_texts_of_one_kind_are_one_piece(pieces: list[Piece], expected: list[Piece]) -> None:
    assert joined(pieces) == expected


def test_a_plain_parser_finds_content_alone() -> None:
    parser = PlainParser()
    assert [parser.push(text) for text in ("<think>", "")] == [[Content("<think>")], []]
    assert parser.finish() == []
    assert parser.in_reasoning is False
