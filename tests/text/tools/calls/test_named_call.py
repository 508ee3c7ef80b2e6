"""Calls that are a name and a JSON object with markup between them."""

from __future__ import annotations

import pytest

from fastovms.params import Grammar, GrammarKind
from fastovms.text.scanning.output import Content, Piece
from fastovms.text.scanning.tool import Tool
from fastovms.text.tools.calls.named_call import named_call, read_arguments
from tests.text.tools.calls.reading import read
from tests.text.tools.checks import call
from tests.vocabularies import vocabulary


@pytest.mark.parametrize(
    ("name", "text", "is_whole", "pieces", "rest"),
    [
        ("f", ' {"a": 1}</c>', True, call(0, "f", '{"a": 1}'), "</c>"),
        ("f", '{"a": ', False, call(0, "f", '{"a": ', complete=False), ""),
        ("f", " </c>", True, call(0, "f", "{}"), "</c>"),
        ("f", "", False, [], ""),
        ("f", " </", False, [], ""),
        ("f", "a", False, [Content("<c>f")], "a"),
        ("f", "[1]", False, [Content("<c>f")], "[1]"),
        ("", "{}", False, [Content("<c>f")], "{}"),
    ],
)
def test_arguments(name: str, text: str, is_whole: bool, pieces: list[Piece], rest: str) -> None:
    found = read(lambda scan, out: read_arguments(scan, out, name, "<c>f", ["</c>"]), text)
    assert found == (is_whole, pieces, rest)


def test_the_grammar() -> None:
    grammar = Grammar(GrammarKind.CALLS, "", "tools", named_call([Tool("f"), Tool("g")], ": "))
    accepts = vocabulary().accepts
    assert [accepts(grammar, text) for text in ("f: {}", "g: {}")] == [True, True]
    assert [accepts(grammar, text) for text in ("h: {}", "f{}", 'f: {"a":1}')] == [False] * 3
