"""Calls that are written as in Python."""

from __future__ import annotations

import pytest

from fastovms.errors import InvalidField
from fastovms.params import Grammar, GrammarKind
from fastovms.text.scanning.output import Content, Piece
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.pythonic_call import pythonic_calls, read_call
from tests.text.tools.calls.reading import read
from tests.text.tools.checks import call
from tests.vocabularies import vocabulary


@pytest.mark.parametrize(
    ("text", "is_whole", "pieces", "rest"),
    [
        ("f()]", True, call(0, "f", "{}"), "]"),
        ("f( a = 1 , b='x', )", True, call(0, "f", '{"a":1,"b":"x"}'), ""),
        ("f(a=1", False, call(0, "f", '{"a":1', complete=False), ""),
        ("f(a=1, 2)", False, call(0, "f", '{"a":1', complete=False), ")"),
        ("f(1)", False, [Content("[f(1")], ")"),
        ("f", False, [], ""),
        ("(a=1)", False, [Content("[")], "(a=1)"),
    ],
)
def test_one_call(text: str, is_whole: bool, pieces: list[Piece], rest: str) -> None:
    found = read(lambda scan, out: read_call(scan, out, "["), text)
    assert found == (is_whole, pieces, rest)


F = Tool("f", {"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]})


@pytest.mark.parametrize(
    ("parallel", "right", "wrong"),
    [
        (True, ["[f(a=1)]", '[f(a=1, b="x"), g()]'], ["[]", "[f()]", "[f(b=1, a=1)]", "[h()]"]),
        (False, ["[g()]"], ["[g(), g()]"]),
    ],
)
def test_the_grammar(parallel: bool, right: list[str], wrong: list[str]) -> None:
    tree = pythonic_calls(CallChoice([F, Tool("g")], parallel=parallel))
    grammar = Grammar(GrammarKind.CALLS, "", "tools", tree)
    accepts = vocabulary().accepts
    assert {text: accepts(grammar, text) for text in right} == dict.fromkeys(right, True)
    assert not any(accepts(grammar, text) for text in wrong)


def test_a_schema_of_the_whole_object_is_refused() -> None:
    with pytest.raises(InvalidField, match="'anyOf'"):
        pythonic_calls(CallChoice([Tool("f", {"anyOf": [{"required": ["a"]}]})]))
