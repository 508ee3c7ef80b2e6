"""String arguments without quotes: what their schemas let through."""

from __future__ import annotations

import pytest

from fastovms.errors import InvalidField
from fastovms.grammar_tree import ANY_TEXT, TextBefore
from fastovms.params import Grammar, GrammarKind
from fastovms.text.scanning.parameters import Parameter, find_parameters
from fastovms.text.scanning.text_values import constants, text_body
from tests.vocabularies import vocabulary

END = "</p>"


def parameter(schema: dict[str, object]) -> Parameter:
    return find_parameters({"properties": {"a": schema}})["a"]


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"type": "string", "enum": ["a", "b"]}, ["a", "b"]),
        ({"type": "string", "const": "a"}, ["a"]),
        ({"type": "string"}, None),
        ({"type": "integer", "enum": [1]}, None),
    ],
)
def test_values_that_are_listed(schema: dict[str, object], values: list[str] | None) -> None:
    assert constants(parameter(schema)) == values


@pytest.mark.parametrize("schema", [{}, {"type": "string"}, {"type": ["string", "null"]}])
def test_a_schema_that_asks_nothing_lets_any_text_through(schema: dict[str, object]) -> None:
    assert text_body(parameter(schema), END) == ANY_TEXT


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"minLength": 2, "maxLength": 3}, ["ab", "a\nb"], ["a", "abcd"]),
        ({"minLength": 2}, ["ab", "abcd"], ["a", ""]),
        ({"pattern": "b"}, ["abc", "b"], ["ac"]),
        ({"pattern": "^a|b$"}, ["a", "b"], ["c"]),
        ({"pattern": r"^a\$"}, ["a$", "a$b"], ["a"]),
        ({"pattern": "^[ab]+$", "maxLength": 2}, ["ab"], ["abc", "aba"]),
        ({"maxLength": 20}, ["<p>"], ["x</p>y"]),
        ({"allOf": [{"pattern": "^a"}, {"pattern": "z$"}]}, ["az", "abz"], ["ab", "bz"]),
        ({"anyOf": [{"pattern": "^a$"}, {"const": "b.c"}]}, ["a", "b.c"], ["b", "bxc"]),
        ({"contentEncoding": "base64", "maxLength": 2}, ["ab"], ["abc"]),
    ],
)
def test_bounds_and_patterns(schema: dict[str, object], right: list[str], wrong: list[str]) -> None:
    body = text_body(parameter({"type": "string", **schema}), END)
    grammar = Grammar(GrammarKind.CALLS, "", "tools", TextBefore(END, body))
    accepts = vocabulary().accepts
    assert {text: accepts(grammar, text + END) for text in right} == dict.fromkeys(right, True)
    assert not any(accepts(grammar, text + END) for text in wrong)


def test_what_no_expression_says_is_refused() -> None:
    schema = {"type": "string", "anyOf": [{"pattern": "a", "minLength": 2}, {"const": "b"}]}
    with pytest.raises(InvalidField, match="'anyOf' of the string parameter a") as caught:
        text_body(parameter(schema), END)
    assert caught.value.param == "tools"
    assert text_body(parameter(schema)._replace(is_relaxed=True), END) == ANY_TEXT
