"""Tests of `fastovms/text/tools/json_calls.py`."""

from __future__ import annotations

import pytest

from fastovms.params import Grammar, GrammarKind
from fastovms.text.output import call_grammar
from fastovms.text.parameters import Tool
from fastovms.text.scanning import Content, Incremental, Piece, PieceCollector, Scanner
from fastovms.text.tools import CallChoice, ToolFormat
from fastovms.text.tools.json_calls import (
    CallTags,
    json_call,
    json_calls,
    read_call,
    read_calls,
    read_list,
    tagged_json,
)
from tests.text.tools.checks import call, check_sample
from tests.text.tools.reading import read
from tests.vocabularies import vocabulary

# Calls in a list, here of single letters.


def letter(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[bool]:
    name = yield from scan.peek()
    if not name.isalpha():
        out.content(opening)
        return False
    yield from scan.read(1)
    out.begin(name)
    out.arguments("{}")
    out.end(complete=True)
    return True


A, B = call(0, "a", "{}"), call(1, "b", "{}")


@pytest.mark.parametrize(
    ("text", "is_whole", "pieces", "rest"),
    [
        ("a]x", True, A, "x"),
        (" a , b ] ", True, A + B, " "),
        ("a b]", False, A, "b]"),
        ("a, 1]", False, [*A, Content(", ")], "1]"),
        ("]", False, [Content("[")], "]"),
        ("a", False, A, ""),
    ],
)
def test_read_list_yields_items_up_to_the_closing_bracket(
    text: str, is_whole: bool, pieces: list[object], rest: str
) -> None:
    found = read(lambda scan, out: read_list(scan, out, "[", letter), text)
    assert found == (is_whole, pieces, rest)


# Calls that are JSON objects, alone and in lists.


F = call(0, "f", '{"a": 1}')


@pytest.mark.parametrize(
    ("text", "is_whole", "pieces", "rest"),
    [
        ('{"name": "f", "arguments": {"a": 1}}x', True, F, "x"),
        ('{"arguments": {"a": 1}, "name": "f"}', True, F, ""),
        ('{"id": "1", "type": "function", "name": "f", "parameters": {"a": 1}}', True, F, ""),
        ('{"name": "f", "arguments": {"a": 1}, "more": [1]}', True, F, ""),
        ('{"name": "f"}', True, call(0, "f", "{}"), ""),
        ('{"name": "f", "arguments": null}', True, call(0, "f", "{}"), ""),
        ('{"name": "f", "arguments": ""}', True, call(0, "f", "{}"), ""),
        ('{"name": "f", "arguments": {"a": 1', False, call(0, "f", '{"a": 1', complete=False), ""),
        ('{"name": "", "arguments": {}}', False, [Content('<c>{"name": ""')], ', "arguments": {}}'),
        ('{"text": "f"}', False, [Content('<c>{"text": ')], '"f"}'),
        ('{"name": "f", "arguments": [1]}', False, [Content('<c>{"name": "f", "arguments": ')],
         "[1]}"),
        ("f", False, [Content("<c>")], "f"),
    ],
)  # fmt: skip
def test_json_call_is_read_whole_cut_or_as_content(
    text: str, is_whole: bool, pieces: list[Piece], rest: str
) -> None:
    found = read(lambda scan, out: read_call(scan, out, "<c>"), text)
    assert found == (is_whole, pieces, rest)


@pytest.mark.parametrize(
    ("text", "num_calls", "is_whole"),
    [
        ('[{"name": "f"}, {"name": "g"}]', 2, True),
        (' {"name": "f"}', 1, True),
        ('[{"name": "f"}, 5]', 1, False),
        ("[]", 0, False),
    ],
)
def test_one_or_a_list(text: str, num_calls: int, is_whole: bool) -> None:
    found_whole, pieces, _ = read(lambda scan, out: read_calls(scan, out, ""), text)
    assert found_whole is is_whole
    assert sum(piece in pieces for piece in (call(0, "f", "")[0], call(1, "g", "")[0])) == num_calls


@pytest.mark.parametrize(
    ("tree", "right", "wrong"),
    [
        (json_call([Tool("f"), Tool('"')], "parameters"),
         ['{"name": "f", "parameters": {}}', '{"name": "\\"", "parameters": {}}'],
         ['{"name": "g", "parameters": {}}', '{"name": "f", "arguments": {}}']),
        (json_calls(json_call([Tool("f")]), parallel=False),
         ['[{"name": "f", "arguments": {}}]'],
         ['[{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}]', "[]"]),
        (json_calls(json_call([Tool("f")]), parallel=True, begin=""),
         ['{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}]'],
         ['[{"name": "f", "arguments": {}}]']),
    ],
)  # fmt: skip
def test_json_call_grammars_accept_only_calls_of_their_form(
    tree, right: list[str], wrong: list[str]
) -> None:
    accepts = vocabulary().accepts
    grammar = Grammar(GrammarKind.CALLS, "", "tools", tree)
    assert {text: accepts(grammar, text) for text in right} == dict.fromkeys(right, True)
    assert not any(accepts(grammar, text) for text in wrong)


# Formats of calls in JSON between tags, made up for the test.


LIST = tagged_json("list", CallTags("<c>", "</c>", also=("<d>",)), keys=("tool_name", "parameters"))
EACH = tagged_json("each", CallTags("<c>", "</c>"), is_list=False, line="\n")
OPEN = tagged_json("open", CallTags("<c>", ""), is_list=False)
TAGGED_JSON_F = '{"name": "f", "arguments": {}}'
G = '{"tool_name": "f", "parameters": {}}'
ONE = call(0, "f", "{}")
TWO = [*ONE, *call(1, "f", "{}")]


@pytest.mark.parametrize(
    ("tool_format", "text", "pieces"),
    [
        (LIST, f"<c>[{G}, {G}]</c>", TWO),
        (LIST, f"<d>{G}</c>", ONE),
        (LIST, f"<c>[{G}] </c", ONE),
        (LIST, "<c>[]</c>", [Content("<c>[]</c>")]),
        (EACH, f"<c>\n{TAGGED_JSON_F}\n</c>\n<c>{TAGGED_JSON_F}</c>", TWO),
        (EACH, f"<c>{TAGGED_JSON_F}and", [*ONE, Content("and")]),
        (OPEN, f"a <c> {TAGGED_JSON_F}<c>{TAGGED_JSON_F}", [Content("a"), *TWO]),
    ],
)
def test_calls_are_read(tool_format: ToolFormat, text: str, pieces: list[Piece]) -> None:
    check_sample(tool_format, text, pieces, [Tool("f")])


@pytest.mark.parametrize(
    ("tool_format", "right", "wrong"),
    [
        (
            LIST,
            [f"<c>[{G}]</c>", f"<c>[{G}, {G}]</c>"],
            [f"<c>{G}</c>", f"<c>[{G}]", f"<c>[{TAGGED_JSON_F}]</c>"],
        ),
        (
            EACH,
            [
                f"<c>\n{TAGGED_JSON_F}\n</c>",
                f"<c>\n{TAGGED_JSON_F}\n</c>\n<c>\n{TAGGED_JSON_F}\n</c>",
            ],
            [f"<c>{TAGGED_JSON_F}</c>"],
        ),
        (
            OPEN,
            [f"<c>{TAGGED_JSON_F}", f"<c>{TAGGED_JSON_F}\n<c>{TAGGED_JSON_F}"],
            [f"<c>{TAGGED_JSON_F}</c>", TAGGED_JSON_F],
        ),
    ],
)
def test_calls_are_written(tool_format: ToolFormat, right: list[str], wrong: list[str]) -> None:
    for specials in ((), tool_format.tags):
        accepts = vocabulary(*specials).accepts
        grammar = call_grammar(tool_format, None, CallChoice([Tool("f")], required=True), prompt="")
        assert all(accepts(grammar, text) for text in right)
        assert not any(accepts(grammar, text) for text in wrong)
