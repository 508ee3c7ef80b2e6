"""Tests of `fastovms/text/scanning.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.text.scanning import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Incremental,
    IncrementalParser,
    Piece,
    PieceCollector,
    PlainParser,
    Reasoning,
    Scanner,
    joined,
)

# Pieces of an answer, joined.


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


# Reading text that arrives in pieces.


def run(scan: Scanner, steps: Incremental[object], texts: list[str]) -> object:
    """What the steps return when fed with texts."""
    for text in texts:
        scan.feed(text)
        try:
            next(steps)
        except StopIteration as end:
            return end.value
    scan.end()
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    raise AssertionError("steps go on after the end")


@pytest.mark.slow
@given(st.lists(st.text("<t>ab", max_size=4)), st.sampled_from([("<t>",), ("<t>", "<a"), ("aab",)]))
def test_until_the_first_tag(texts: list[str], tags: tuple[str, ...]) -> None:
    text = "".join(texts)
    found = [(text.index(tag), tag) for tag in tags if tag in text]
    told: list[str] = []
    scan = Scanner()
    tag = run(scan, scan.until(tags, told.append), texts)
    position, expected = min(found) if found else (len(text), None)
    assert tag == expected
    rest = text[:position].removeprefix("".join(told))
    assert text[:position] == "".join(told) + rest
    assert not rest or (tag is None and any(its.startswith(rest) for its in tags))
    assert all(told)


def test_only_the_beginning_of_a_tag_is_held_back() -> None:
    told: list[str] = []
    scan = Scanner()
    steps = scan.until(("<tag>",), told.append)
    for text in ("ab", "<", "<ta", "x<tag", "> behind"):
        scan.feed(text)
        next(steps, None)
    assert told == ["ab", "<", "<tax"]
    assert run(scan, scan.read(3), []) == " be"


@pytest.mark.parametrize(
    ("texts", "is_taken"),
    [(["<", "tag>"], True), (["<t", "x"], False), (["<t"], False), ([], False)],
)
def test_take_reports_whether_the_text_starts_with_a_tag(texts: list[str], is_taken: bool) -> None:
    scan = Scanner()
    assert run(scan, scan.take("<tag>"), texts) is is_taken
    rest = "".join(texts) if "x" in texts else ""
    assert run(scan, scan.read(9), []) == rest


def test_scanner_records_what_was_read() -> None:
    scan = Scanner()
    scan.feed("  abc")
    outer = scan.record()
    assert run(scan, scan.space(), []) == "  "
    inner = scan.record()
    assert run(scan, scan.read(2), []) == "ab"
    scan.put_back("b")
    assert scan.recorded(inner) == "a"
    assert scan.recorded(outer) == "  a"
    again = scan.record()
    assert scan.recorded(again) == ""
    assert run(scan, scan.read(2), []) == "bc"
    assert scan.is_empty


# Pieces as a parser finds them, and the white space beside markup.


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


def test_white_space_is_emitted_with_the_following_text() -> None:
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
