"""Mistral and Devstral, which read each other's calls."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content
from fastovms.text.tools.json_formats.mistral import DEVSTRAL, MISTRAL
from tests.text.tools.checks import SHOP, call, check_sample

SAMPLES = {
    "a list": (
        '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "tea"}, "id": "abc123def"}]',
        call(0, "search", '{"query": "tea"}'),
    ),
    "several in a list": (
        '[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]',
        call(0, "now", "{}") + call(1, "now", "{}"),
    ),
    "a list without a tag": (
        '\n[{"name": "search", "arguments": {"query": "a"}}]',
        call(0, "search", '{"query": "a"}'),
    ),
    "named": ('[TOOL_CALLS]search[ARGS]{"query": "]"}', call(0, "search", '{"query": "]"}')),
    "named, several": (
        '[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS] search [ARGS] {"query": "a"}',
        call(0, "now", "{}") + call(1, "search", '{"query": "a"}'),
    ),
    "named, without a separator": ('[TOOL_CALLS]now{"a": 1}', call(0, "now", '{"a": 1}')),
    "named, with an id": (
        '[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{"a": 1}',
        call(0, "now", '{"a": 1}'),
    ),
    "named, without arguments": (
        "[TOOL_CALLS]now[ARGS][TOOL_CALLS]now[ARGS]{}",
        call(0, "now", "{}") + call(1, "now", "{}"),
    ),
    "content before": (
        "Let me see. [TOOL_CALLS]now[ARGS]{}",
        [Content("Let me see."), *call(0, "now", "{}")],
    ),
    "content in brackets": ("[1, 2]", [Content("[1, 2]")]),
    "content that begins with objects": ('[{"a": 1}]', [Content('[{"a": 1}]')]),
    "a name alone": ("[TOOL_CALLS]now", []),
    "separators inverted": ("[ARGS]{}[TOOL_CALLS]", [Content("[ARGS]{}")]),
    "arguments that are no JSON": (
        "[TOOL_CALLS]now[ARGS]oops",
        [Content("[TOOL_CALLS]now[ARGS]oops")],
    ),
    "broken arguments": (
        '[TOOL_CALLS]now[ARGS]{"a": }',
        [*call(0, "now", '{"a": ', complete=False), Content("}")],
    ),
    "cut": ('[TOOL_CALLS]now[ARGS]{"a": [1', call(0, "now", '{"a": [1', complete=False)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    for tool_format in (MISTRAL, DEVSTRAL):
        check_sample(tool_format, *SAMPLES[name], SHOP)
