"""Tests of `fastovms/text/tools/python_calls.py`."""

from __future__ import annotations

import pytest

from fastovms.errors import InvalidField
from fastovms.params import Grammar, GrammarKind
from fastovms.text.output import call_grammar
from fastovms.text.parameters import CallChoice, Tool
from fastovms.text.scanning import Content, Piece
from fastovms.text.tools.json_formats import LLAMA3
from fastovms.text.tools.python_calls import (
    PYTHONIC,
    braced_calls,
    pythonic_calls,
    read_mixed_list,
    read_pythonic_call,
)
from tests.text.tools.checks import SHOP, call, check_sample
from tests.text.tools.reading import read
from tests.vocabularies import vocabulary

# Calls that are written as in Python.


@pytest.mark.parametrize(
    ("text", "is_whole", "pieces", "rest"),
    [
        ("f()]", True, call(0, "f", "{}"), "]"),
        ("f( a = 1 , b='x', )", True, call(0, "f", '{"a":1,"b":"x"}'), ""),
        ("f(a=1", False, call(0, "f", '{"a":1', complete=False), ""),
        ("f(a=1, 2)", False, [*call(0, "f", '{"a":1', complete=False), Content(", 2")], ")"),
        ("f(a=b)", False, [Content("[f(a=")], "b)"),
        ("f(1)", False, [Content("[f(1")], ")"),
        ("f", False, [], ""),
        ("(a=1)", False, [Content("[")], "(a=1)"),
    ],
)
def test_pythonic_call_is_read_whole_cut_or_as_content(
    text: str, is_whole: bool, pieces: list[Piece], rest: str
) -> None:
    found = read(lambda scan, out: read_pythonic_call(scan, out, "["), text)
    assert found == (is_whole, pieces, rest)


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


def test_a_schema_of_the_whole_object_is_refused() -> None:
    with pytest.raises(InvalidField, match="'anyOf'"):
        pythonic_calls(CallChoice([Tool("f", {"anyOf": [{"required": ["a"]}]})]))


# Calls with their arguments in braces, in a form made up for the test.


FORMAT = braced_calls("braced", "<c>", "</c>", "<q>")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("<c>call:search{query:<q>a,b<q>,limit:2}</c>",
         call(0, "search", '{"query":"a,b","limit":2}')),
        ("<c>call:now{}, call:now{}</c>", call(0, "now", "{}") + call(1, "now", "{}")),
        ("<c>call:search{query:5,limit:five}</c>",
         call(0, "search", '{"query":"5","limit":"five"}')),
        ("<c>call:now{a}</c>", [Content("<c>call:now{a}</c>")]),
        ("<c>call:now{a:1,b}</c>",
         [*call(0, "now", '{"a":1', complete=False), Content("b}</c>")]),
        ("<c>call now{}</c>", [Content("<c>call now{}</c>")]),
    ],
)  # fmt: skip
def test_calls_are_read(text: str, pieces: list[Piece]) -> None:
    check_sample(FORMAT, text, pieces, SHOP)


def test_calls_are_written() -> None:
    grammar = call_grammar(FORMAT, None, CallChoice(SHOP, required=True), prompt="")
    for specials in ((), FORMAT.tags):
        accepts = vocabulary(*specials).accepts
        assert (
            accepts(grammar, "<c>call:search{query:<q>a<q>,limit:2}</c><c>call:now{}</c>") is True
        )
        assert accepts(grammar, "<c>call:search{query:a}</c>") is False
        assert accepts(grammar, "<c>call:search{limit:2}</c>") is False


# Calls of Llama 3 and 4, in JSON and pythonic.


SAMPLES = {
    "JSON": (
        '{"name": "search", "parameters": {"query": "tea"}}',
        call(0, "search", '{"query": "tea"}'),
    ),
    "JSON with a tag": (
        'Wait. <|python_tag|>{"name": "now", "parameters": {}}',
        [Content("Wait."), *call(0, "now", "{}")],
    ),
    "several": (
        '<|python_tag|>{"name": "now", "parameters": {}}; {"name": "now", "arguments": {"a": 1}};',
        call(0, "now", "{}") + call(1, "now", '{"a": 1}'),
    ),
    "a kind before the name": (
        '{"type": "function", "name": "now", "parameters": {}}',
        call(0, "now", "{}"),
    ),
    "pythonic": (
        """[search(query='a "b"', limit=3, exact=True), now()]""",
        call(0, "search", r'{"query":"a \"b\"","limit":3,"exact":true}') + call(1, "now", "{}"),
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
    "plain": (" It is {now}.", [Content(" It is {now}.")]),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_pythonic_sample_gives_its_pieces_however_cut(name: str) -> None:
    for tool_format in (LLAMA3, PYTHONIC):
        check_sample(tool_format, *SAMPLES[name], SHOP)


# Lists of calls in either notation.


MIXED_LIST_F = call(0, "f", "{}")


@pytest.mark.parametrize(
    ("text", "is_whole", "pieces", "rest"),
    [
        ("[f()]a", True, MIXED_LIST_F, "a"),
        (' [{"name": "f"}]', True, MIXED_LIST_F, ""),
        ('{"name": "f"}]', True, MIXED_LIST_F, "]"),
        ("[f(), g()]", False, [*MIXED_LIST_F, Content(", g")], "()]"),
        ('[{"name": "g"}]', False, [Content('<c>[{"name": "g"')], "}]"),
        ("f()", False, [Content("<c>")], "f()"),
    ],
)
def test_mixed_list_reads_json_or_python_calls_of_known_functions(
    text: str, is_whole: bool, pieces: list[Piece], rest: str
) -> None:
    found = read(lambda scan, out: read_mixed_list(scan, out, "<c>", ["f"]), text)
    assert found == (is_whole, pieces, rest)
