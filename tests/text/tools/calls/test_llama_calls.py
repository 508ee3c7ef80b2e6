"""Calls of Llama 3 and 4, in JSON and pythonic."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content
from fastovms.text.tools.json_formats.llama3 import LLAMA3
from fastovms.text.tools.literal_formats.pythonic import PYTHONIC
from tests.text.tools.checks import SHOP, call, check_sample

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
def test_samples(name: str) -> None:
    for tool_format in (LLAMA3, PYTHONIC):
        check_sample(tool_format, *SAMPLES[name], SHOP)
