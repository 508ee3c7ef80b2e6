"""What formats share: calls behind a tag, and the tag behind a call."""

from __future__ import annotations

import pytest

from fastovms.grammar_tree import Literal
from fastovms.params import Grammar, GrammarKind
from fastovms.text.parameters import CallChoice, Tool
from fastovms.text.tools.tool_format import tagged_calls
from tests.vocabularies import vocabulary


@pytest.mark.parametrize(
    ("required", "parallel", "between", "right", "wrong"),
    [
        (True, True, ",", ["<c>x", "<c>x,<c>x"], ["", "a<c>x", "<c>x<c>x", "<c>x,"]),
        (True, True, None, ["<c>x"], ["<c>x,<c>x"]),
        (True, False, ",", ["<c>x"], ["<c>x,<c>x", ""]),
        (False, True, ",", ["", "a<c>x", "<c>xa<c>x"], ["<c>y", "<c>"]),
        (False, False, ",", ["a", "a<c>x"], ["<c>x<c>x", "<c>xa"]),
    ],
)
def test_grammar_of_tagged_calls_follows_the_choice(
    required: bool, parallel: bool, between: str | None, right: list[str], wrong: list[str]
) -> None:
    choice = CallChoice([Tool("f")], required=required, parallel=parallel)
    tree = tagged_calls(choice, "<c>", Literal("x"), between)
    grammar = Grammar(GrammarKind.CALLS, "", "tools", tree)
    for specials in ((), ("<c>",)):
        accepts = vocabulary(*specials).accepts
        assert {text: accepts(grammar, text) for text in right} == dict.fromkeys(right, True)
        assert not any(accepts(grammar, text) for text in wrong)
