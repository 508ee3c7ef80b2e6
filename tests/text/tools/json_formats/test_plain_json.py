"""Calls in plain JSON, as models write them that have no format of their own."""

from __future__ import annotations

import pytest

from fastovms.text.output_grammar import call_grammar
from fastovms.text.scanning.output import Content, Piece
from fastovms.text.tools import CallChoice
from fastovms.text.tools.json_formats.plain_json import PLAIN_JSON
from tests.text.tools.checks import SHOP, call, check_sample
from tests.vocabularies import vocabulary

NOW = '{"name": "now", "arguments": {}}'
ONE = call(0, "now", "{}")
TWO = [*ONE, *call(1, "now", "{}")]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (NOW, ONE),
        (f"\n{NOW}\n{NOW}\n", TWO),
        (f"{NOW}, {NOW}", TWO),
        (f"[{NOW}, {NOW}]", TWO),
        ('{"name": "search", "parameters": {"query": "a"}}', call(0, "search", '{"query": "a"}')),
        (f"```json\n{NOW}\n```", ONE),
        (f"I look.\n\n```json\n{NOW}\n```\nDone.",
         [Content("I look."), *ONE, Content("\n\n\nDone.")]),
        (f"```tool_call\n[{NOW}]\n```", ONE),
        (f"{NOW} is it", [*ONE, Content("is it")]),
        (f"So {NOW}", [Content(f"So {NOW}")]),
        ('{"name": "Ann", "arguments": {}}', [Content('{"name": "Ann", "arguments": {}}')]),
        ('```json\n{"name": "Ann"}\n```', [Content('```json\n{"name": "Ann"}\n```')]),
        ("```json\n[1, 2]\n```", [Content("```json\n[1, 2]\n```")]),
        ("```python\nx\n```", [Content("```python\nx\n```")]),
        ('{"name": "search", "arguments": {"q', call(0, "search", '{"q', complete=False)),
    ],
)  # fmt: skip
def test_calls_are_read(text: str, pieces: list[Piece]) -> None:
    check_sample(PLAIN_JSON, text, pieces, SHOP)


def test_calls_are_written() -> None:
    accepts = vocabulary().accepts
    required = call_grammar(PLAIN_JSON, None, CallChoice(SHOP, required=True), prompt="")
    free = call_grammar(PLAIN_JSON, None, CallChoice(SHOP, parallel=False), prompt="")
    assert accepts(required, f"{NOW}\n{NOW}") is True
    assert accepts(required, "text") is False
    assert accepts(free, NOW) is True
    assert accepts(free, f"{NOW}\n{NOW}") is False
    assert accepts(free, '{"name": "now", "arguments": {"a": 1}}') is False
    assert accepts(free, '{"name": "Ann"} or text') is True
