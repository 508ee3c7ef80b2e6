"""Calls that are JSON objects, alone and in lists."""

from __future__ import annotations

import pytest

from fastovms.params import Grammar, GrammarKind
from fastovms.text.scanning.output import Content, Piece
from fastovms.text.scanning.tool import Tool
from fastovms.text.tools.calls.json_call import json_call, json_calls, read_call, read_calls
from tests.text.tools.calls.reading import read
from tests.text.tools.checks import call
from tests.vocabularies import vocabulary

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
def test_one_call(text: str, is_whole: bool, pieces: list[Piece], rest: str) -> None:
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
def test_grammars(tree, right: list[str], wrong: list[str]) -> None:
    accepts = vocabulary().accepts
    grammar = Grammar(GrammarKind.CALLS, "", "tools", tree)
    assert {text: accepts(grammar, text) for text in right} == dict.fromkeys(right, True)
    assert not any(accepts(grammar, text) for text in wrong)
