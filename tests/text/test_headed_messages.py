"""Messages with headers, in a form made up for the test: `<k>header:body;`."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial

import pytest

from fastovms.text.headed_messages import HeadedMessages, Header, MessageKind, parse_messages
from fastovms.text.scanning import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Incremental,
    IncrementalParser,
    Piece,
    PieceCollector,
    Reasoning,
    Scanner,
)
from tests.text.parsing import parse
from tests.text.tools.checks import cuts


def read_header(text: str, functions: Collection[str]) -> Header:
    kinds = {"<k>call:": MessageKind.CALL, "<k>think:": MessageKind.REASONING}
    return Header(kinds.get(text, MessageKind.CONTENT), "f")


def read_call(scan: Scanner, out: PieceCollector, name: str) -> Incremental[None]:
    out.begin(name)
    out.arguments((yield from scan.read(2)))
    out.end(complete=True)


FORM = HeadedMessages(["<k>"], ["say:"], ":", [";"], read_header, read_call, re.compile(r"<k>\w*"))
CALL: list[Piece] = [CallBegin(0, "f"), CallArguments(0, "{}"), CallEnd(0, True)]


def pieces(text: str, *, has_tools: bool = True, tells: bool = True, inside: bool = False) -> list:
    start = partial(
        parse_messages,
        form=FORM,
        tells_calls=has_tools,
        tells_reasoning=tells,
        is_inside=inside,
    )
    found = [parse(IncrementalParser(start), parts) for parts in cuts(text)]
    assert all(each == found[0] for each in found)
    return found[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<k>x:a;", [Content("a")]),
        ("<k>think:a;<k>x:b", [Reasoning("a"), Content("b")]),
        ("<k>think:a<k>x:b;", [Reasoning("a"), Content("b")]),
        ("<k>call:{};", CALL),
        ("<k>call:{} ;<k>x:b;", [*CALL, Content("b")]),
        ("<k>call:{}rest;", [*CALL, Content("rest")]),
        ("plain", [Content("plain")]),
        ("<k>x", []),
        ("<k>x y", []),
        ("<k>x;y", [Content("y")]),
        ("<k>x a word;", [Content("a word")]),
        ("<k>x a word", [Content("a word")]),
        ("<k>think:a<", [Reasoning("a")]),
        ("<k>x:a;<k>x:b;", [Content("a b")]),
    ],
)
def test_headed_messages_become_pieces_of_their_kind(text: str, expected: list[Piece]) -> None:
    assert pieces(text) == expected


def test_markup_that_is_not_searched_is_content() -> None:
    assert pieces("<k>call:{};", has_tools=False) == [Content("{}")]
    assert pieces("<k>think:a;<k>x:b;", tells=False) == [Content("a b")]


def test_an_answer_that_begins_within_a_thought() -> None:
    assert pieces("a;<k>x:b;", inside=True) == [Reasoning("a"), Content("b")]
