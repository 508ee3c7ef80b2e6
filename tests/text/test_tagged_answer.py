"""Calls and thoughts among each other, in forms made up for the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fastovms.text.reasoning.reasoning_format import ThoughtTags
from fastovms.text.scanning.incremental_parser import IncrementalParser, PieceCollector
from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    Reasoning,
)
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import Tool
from fastovms.text.tagged_answer import TaggedAnswer
from fastovms.text.tools.tool_format import TaggedCalls
from tests.text.parsing import parse
from tests.text.tools.checks import cuts


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    if (yield from scan.take("()")):
        out.begin("f")
        out.arguments("{}")
        out.end(complete=True)
    else:
        out.content(opening)


CALLS = TaggedCalls(("<f>",), read, bare=("()",))
THOUGHTS = ThoughtTags((("<t>", "</t>"), ("so:", ".")), ("<a>", "</a>"))
ANYWHERE = ThoughtTags((("<t>x", "</t>"), ("<t>", "</t>")), ("<a>", "</a>"), anywhere=True)


def call(index: int) -> list[Piece]:
    return [CallBegin(index, "f"), CallArguments(index, "{}"), CallEnd(index, True)]


def check(text: str, pieces: list[Piece], thoughts: ThoughtTags | None, **given: bool) -> None:
    inside = given.get("inside", False)
    calls = CALLS if given.get("has_tools", True) else None
    for parts in cuts(text):
        answer = TaggedAnswer(calls, thoughts, [], inside)
        assert parse(IncrementalParser(answer.parse), parts) == pieces, parts


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a", [Content("a")]),
        ("<t>a</t>b<f>()", [Reasoning("a"), Content("b"), *call(0)]),
        ("so: a.b", [Reasoning("a"), Content("b")]),
        ("<t>a<f>()</t>b", [Reasoning("a"), *call(0), Content("b")]),
        ("<t>a<f>b</t>c", [Reasoning("a<f>b"), Content("c")]),
        ("<t>a", [Reasoning("a")]),
        ("<t>a</t><a>b</a>", [Reasoning("a"), Content("b")]),
        ("<a>b</a>", [Content("<a>b</a>")]),
        ("b<t>a</t>", [Content("b<t>a</t>")]),
        ("()a", [*call(0), Content("a")]),
        ("a()", [Content("a()")]),
        ("<t>a</t>()", [Reasoning("a"), *call(0)]),
    ],
)
def test_a_thought_comes_first(text: str, pieces: list[Piece]) -> None:
    check(text, pieces, THOUGHTS)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("<t>xa</t>b", [Reasoning("a"), Content("b")]),
        ("b<t>a</t>c<t>xd</t>",
         [Content("b"), Reasoning("a"), Content("c"), Reasoning("\nd")]),
        ("a</t>b", [Content("ab")]),
        ("<a>b</a>", [Content("b")]),
        ("b<t>a<f>()</t>", [Content("b"), Reasoning("a"), *call(0)]),
    ],
)  # fmt: skip
def test_thoughts_may_come_anywhere(text: str, pieces: list[Piece]) -> None:
    check(text, pieces, ANYWHERE)


def test_calls_may_be_shown_in_thoughts_where_their_tags_are_no_others() -> None:
    shown = replace(CALLS, end_thoughts=False)
    for parts in cuts("<t>a<f>()</t><f>()"):
        answer = TaggedAnswer(shown, THOUGHTS, [], is_inside=False)
        assert parse(IncrementalParser(answer.parse), parts) == [Reasoning("a<f>()"), *call(0)]


def test_an_answer_that_begins_within_a_thought() -> None:
    check("a</t>b", [Reasoning("a"), Content("b")], THOUGHTS, inside=True)
    check("a<f>()", [Reasoning("a"), *call(0)], THOUGHTS, inside=True)


def test_what_is_not_looked_for_is_content() -> None:
    check("<t>a</t><f>()", [Content("<t>a</t>"), *call(0)], None)
    check(
        "<t>a<f>()</t>b<f>()", [Reasoning("a<f>()"), Content("b<f>()")], THOUGHTS, has_tools=False
    )
    check("<f>()", [Content("<f>()")], None, has_tools=False)
