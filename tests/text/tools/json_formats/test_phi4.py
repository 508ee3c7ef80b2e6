"""Phi 4 mini."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content
from fastovms.text.tools.json_formats.phi4 import PHI4
from tests.text.tools.checks import SHOP, call, check_sample

SAMPLES = {
    "one": (
        'functools[{"name": "search", "arguments": {"query": "tea"}}]',
        call(0, "search", '{"query": "tea"}'),
    ),
    "several": (
        'functools[{"name": "now", "arguments": {}},\n {"name": "search", "arguments": {"a": 1}}]',
        call(0, "now", "{}") + call(1, "search", '{"a": 1}'),
    ),
    "between tags": (
        '<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>',
        call(0, "now", "{}"),
    ),
    "content around": (
        'I see. functools[{"name": "now"}] Done.',
        [Content("I see."), *call(0, "now", "{}"), Content("  Done.")],
    ),
    "the word itself": (
        "import functools\nfunctools.reduce",
        [Content("import functools\nfunctools.reduce")],
    ),
    "an empty list": ("functools[]", [Content("functools[]")]),
    "no list": ("<|tool_call|>x", [Content("<|tool_call|>x")]),
    "broken second call": (
        'functools[{"name": "now"}, {nam]',
        [*call(0, "now", "{}"), Content(", {nam]")],
    ),
    "no comma": (
        'functools[{"name": "now"} {"name": "now"}]',
        [*call(0, "now", "{}"), Content('{"name": "now"}]')],
    ),
    "cut": (
        'functools[{"name": "search", "arguments": {"query": "t',
        call(0, "search", '{"query": "t', complete=False),
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    check_sample(PHI4, *SAMPLES[name], SHOP)
