"""Tests of `fastovms/text/tools/python_calls.py`."""

from __future__ import annotations

import pytest

from fastovms.errors import InvalidField
from fastovms.params import Grammar, GrammarKind
from fastovms.text.parameters import CallChoice, Tool
from fastovms.text.scanning import Content
from fastovms.text.tools.json_formats import LLAMA3
from fastovms.text.tools.python_calls import (
    PYTHONIC,
    pythonic_calls,
)
from tests.text.tools.checks import SHOP, call, check_sample
from tests.vocabularies import vocabulary

# Calls that are written as in Python.


F = Tool("f", {"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]})


@pytest.mark.parametrize(
    ("parallel", "right", "wrong"),
    [
        (True, ["[f(a=1)]", '[f(a=1, b="x"), g()]'], ["[]", "[f()]", "[f(b=1, a=1)]", "[h()]"]),
        (False, ["[g()]"], ["[g(), g()]"]),
    ],
)
def test_pythonic_grammar_accepts_only_well_formed_calls_of_its_tools(
    parallel: bool, right: list[str], wrong: list[str]
) -> None:
    tree = pythonic_calls(CallChoice([F, Tool("g")], parallel=parallel))
    grammar = Grammar(GrammarKind.CALLS, "", "tools", tree)
    accepts = vocabulary().accepts
    assert {text: accepts(grammar, text) for text in right} == dict.fromkeys(right, True)
    assert not any(accepts(grammar, text) for text in wrong)


def test_schema_of_the_whole_object_is_refused() -> None:
    with pytest.raises(InvalidField, match="'anyOf'"):
        pythonic_calls(CallChoice([Tool("f", {"anyOf": [{"required": ["a"]}]})]))


# Calls of Llama 3 and 4, in JSON and pythonic.


SAMPLES = {
    "JSON with a tag": (
        'Wait. <|python_tag|>{"name": "now", "parameters": {}}',
        [Content("Wait."), *call(0, "now", "{}")],
    ),
    "pythonic with tags": ("<|python_start|>[now()]<|python_end|>", call(0, "now", "{}")),
    "JSON in a list": ('[{"name": "now", "parameters": {}}]', call(0, "now", "{}")),
    "an unknown name": (
        '{"name": "Ann", "parameters": {"age": 7}}',
        [Content('{"name": "Ann", "parameters": {"age": 7}}')],
    ),
    "an unknown name behind a tag": (
        '<|python_tag|>{"name": "ann", "parameters": {}}',
        call(0, "ann", "{}"),
    ),
    "an unknown name in a list": ("[ann(age=7)]", [Content("[ann(age=7)]")]),
    "JSON that is no call": ('{"answer": 42} ', [Content('{"answer": 42} ')]),
    "brackets that are no calls": ("[1] says so", [Content("[1] says so")]),
    "code": ("<|python_tag|>print(1)", [Content("<|python_tag|>print(1)")]),
    "text behind": (
        '{"name": "now", "parameters": {}} and more',
        [*call(0, "now", "{}"), Content("and more")],
    ),
    "cut": (
        '{"name": "search", "parameters": {"query": "\\u00e',
        call(0, "search", '{"query": "\\u00e', complete=False),
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_llama_sample_gives_its_pieces_however_cut(name: str) -> None:
    for tool_format in (LLAMA3, PYTHONIC):
        check_sample(tool_format, *SAMPLES[name], SHOP)
