"""Granite 3 and 4."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content
from fastovms.text.tools.json_formats.granite import GRANITE
from tests.text.tools.checks import SHOP, call, check_sample

SAMPLES = {
    "one": (
        '<|tool_call|>[{"name": "search", "arguments": {"query": "tea"}}]',
        call(0, "search", '{"query": "tea"}'),
    ),
    "several": (
        '<|tool_call|> [{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]',
        call(0, "now", "{}") + call(1, "now", "{}"),
    ),
    "the other tag, one call": (
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\nok',
        [*call(0, "now", "{}"), Content("ok")],
    ),
    "arguments in a string": (
        '<tool_call>\n{"name": "search", "arguments": "{\\"query\\": \\"a\\"}"}\n</tool_call>',
        call(0, "search", '{"query": "a"}'),
    ),
    "a string before the name": (
        '<tool_call>{"arguments": "{}", "name": "now"}</tool_call>',
        call(0, "now", "{}"),
    ),
    "arguments in a string that is no JSON": (
        '<tool_call>{"name": "now", "arguments": "{a}"}</tool_call>',
        [*call(0, "now", "", complete=False), Content("}</tool_call>")],
    ),
    "arguments in another string": (
        '<tool_call>{"name": "now", "arguments": "a"}</tool_call>',
        [Content('<tool_call>{"name": "now", "arguments": "a"}</tool_call>')],
    ),
    "a function of its own": (
        '<tool_call>{"type": "function", "function": {"name": "now", "arguments": ""}}</tool_call>',
        call(0, "now", "{}"),
    ),
    "cut before the name": ('<|tool_call|>[{"nam', []),
    "an empty list": ("<|tool_call|>[]", [Content("<|tool_call|>[]")]),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    check_sample(GRANITE, *SAMPLES[name], SHOP)
