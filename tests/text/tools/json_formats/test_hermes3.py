"""Hermes, Qwen 2.5 and 3."""

from __future__ import annotations

import pytest

from fastovms.config.model_config import DEMO_MODEL
from fastovms.text.output_grammar import call_grammar
from fastovms.text.output_parser import output_parser
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.scanning.output import CallBegin, Content
from fastovms.text.scanning.tool import CallChoice
from fastovms.text.tools.json_formats.hermes3 import HERMES3
from tests.text.parsing import parse
from tests.text.tools.checks import SHOP, call, check_sample
from tests.vocabularies import Vocabulary

SAMPLES = {
    "one": (
        '<tool_call>\n{"name": "search", "arguments": {"query": "tea"}}\n</tool_call>',
        call(0, "search", '{"query": "tea"}'),
    ),
    "compact": (
        '<tool_call>{"name":"search","arguments":{"query":"tea"}}</tool_call>',
        call(0, "search", '{"query":"tea"}'),
    ),
    "several": (
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "search", "arguments": {"query": "a", "limit": 3}}\n</tool_call>',
        call(0, "now", "{}") + call(1, "search", '{"query": "a", "limit": 3}'),
    ),
    "content around": (
        'Let me see.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\nDone. ',
        [Content("Let me see."), *call(0, "now", "{}"), Content("\n\nDone. ")],
    ),
    "escapes, unicode and tags in strings": (
        r'<tool_call>{"name": "search", "arguments": '
        r'{"query": "\"{a}\"\\ \u00e9 ß 東 </tool_call>"}}</tool_call>',
        call(0, "search", r'{"query": "\"{a}\"\\ \u00e9 ß 東 </tool_call>"}'),
    ),
    "nested": (
        '<tool_call>{"name": "order", "arguments": {"items": [{"sku": "x", "count": -1.5e3}, {}], '
        '"priority": null, "a": [[], [true, false]]}}</tool_call>',
        call(
            0,
            "order",
            '{"items": [{"sku": "x", "count": -1.5e3}, {}], "priority": null, '
            '"a": [[], [true, false]]}',
        ),
    ),
    "arguments first": (
        '<tool_call>{"arguments": {"query": "tea"}, "name": "search"}</tool_call>',
        call(0, "search", '{"query": "tea"}'),
    ),
    "further members": (
        '<tool_call>{"id": [1, "x"], "name": "now", "arguments": {}, "kind": "x"}</tool_call>',
        call(0, "now", "{}"),
    ),
    "no arguments": ('<tool_call>{"name": "now"}</tool_call>', call(0, "now", "{}")),
    "null for arguments": (
        '<tool_call>{"name": "now", "arguments": null}</tool_call>',
        call(0, "now", "{}"),
    ),
    "parameters": (
        '<tool_call>{"name": "search", "parameters": {"query": "a"}}</tool_call>',
        call(0, "search", '{"query": "a"}'),
    ),
    "no closing tag": (
        '<tool_call>\n{"name": "now", "arguments": {}}',
        call(0, "now", "{}"),
    ),
    "control characters": (
        '<tool_call>{"name": "search", "arguments": {"query": "a\nb\tc\x01"}}</tool_call>',
        call(0, "search", r'{"query": "a\nb\tc\u0001"}'),
    ),
    "wrong escapes": (
        r'<tool_call>{"name": "search", "arguments": {"query": "\d\ux\'"}}</tool_call>',
        call(0, "search", r"""{"query": "\\d\\ux\\'"}"""),
    ),
    # What is malformed is content.
    "no JSON": ("<tool_call>nothing</tool_call>", [Content("<tool_call>nothing</tool_call>")]),
    "no name": (
        'So <tool_call>{"arguments": {}}</tool_call> ',
        [Content('So <tool_call>{"arguments": {}}</tool_call> ')],
    ),
    "arguments that are no object": (
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        [Content('<tool_call>{"name": "now", "arguments": [1]}</tool_call>')],
    ),
    "a tag alone": ("<tool_call>", []),
    "half a tag": ("a <tool_ca", [Content("a ")]),
    "a closing tag": ("a</tool_call>", [Content("a</tool_call>")]),
    "malformed, then a call": (
        '<tool_call>{"name"}<tool_call>{"name": "now"}</tool_call>',
        [Content('<tool_call>{"name"}'), *call(0, "now", "{}")],
    ),
    "broken arguments": (
        '<tool_call>{"name": "search", "arguments": {"query": oops}}</tool_call>',
        [*call(0, "search", '{"query": ', complete=False), Content("oops}}</tool_call>")],
    ),
    "one brace too many": (
        '<tool_call>{"name": "now", "arguments": {}}}</tool_call>',
        [*call(0, "now", "{}"), Content("}</tool_call>")],
    ),
    # What the end cuts.
    "cut in a string": (
        '<tool_call>{"name": "search", "arguments": {"query": "te',
        call(0, "search", '{"query": "te', complete=False),
    ),
    "cut in a number": (
        '<tool_call>{"name": "search", "arguments": {"limit": 1',
        call(0, "search", '{"limit": 1', complete=False),
    ),
    "cut in a literal": (
        '<tool_call>{"name": "search", "arguments": {"exact": fa',
        call(0, "search", '{"exact": fa', complete=False),
    ),
    "cut before the name": (
        '<tool_call>{"arguments": {"query": "tea"}, "na',
        [],
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    check_sample(HERMES3, *SAMPLES[name], SHOP)


@pytest.mark.parametrize("seed", range(8))
def test_the_grammar_and_the_demo_model(seed: int) -> None:
    """Its tags are tokens that are no control tokens."""
    source = (DEMO_MODEL / "tokenizer.json").read_text()
    demo = Vocabulary(source, eos=2)
    choice = CallChoice(SHOP, required=True)
    grammar = call_grammar(HERMES3, REASONING_FORMATS["qwen3"], choice, prompt="")
    text = demo.walk(grammar, ['"', "}", "]", "</tool_call>", "</think>"], seed)
    parser = output_parser(HERMES3, REASONING_FORMATS["qwen3"], prompt="", tools=SHOP)
    pieces = parse(parser, text)
    assert any(isinstance(piece, CallBegin) for piece in pieces)
    assert not any(isinstance(piece, Content) for piece in pieces)
    begin = demo.encode("<tool_call>")
    assert demo.encode("<tool_call>\n{")[: len(begin)] == begin
    assert demo.accepts(grammar, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
