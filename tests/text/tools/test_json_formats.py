"""Tests of `fastovms/text/tools/json_formats.py`."""

from __future__ import annotations

import pytest

from fastovms.server_config import DEMO_MODEL
from fastovms.text.output import call_grammar, output_parser
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.scanning import CallBegin, Content, Piece
from fastovms.text.tools import CallChoice, ToolFormat
from fastovms.text.tools.json_formats import (
    APERTUS,
    DEVSTRAL,
    GRANITE,
    HERMES3,
    LLAMA3,
    MISTRAL,
    PHI4,
    PLAIN_JSON,
    XLAM,
)
from tests.text.parsing import parse
from tests.text.tools.checks import SHOP, call, check_sample, samples
from tests.vocabularies import Vocabulary, vocabulary

# Calls in plain JSON, as models write them that have no format of their own.


NOW = '{"name": "now", "arguments": {}}'
ONE = call(0, "now", "{}")
TWO = [*ONE, *call(1, "now", "{}")]


PLAIN_JSON_SAMPLES = [
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
]  # fmt: skip


def test_plain_json_grammar_accepts_calls_of_its_tools() -> None:
    accepts = vocabulary().accepts
    required = call_grammar(PLAIN_JSON, None, CallChoice(SHOP, required=True), prompt="")
    free = call_grammar(PLAIN_JSON, None, CallChoice(SHOP, parallel=False), prompt="")
    assert accepts(required, f"{NOW}\n{NOW}") is True
    assert accepts(required, "text") is False
    assert accepts(free, NOW) is True
    assert accepts(free, f"{NOW}\n{NOW}") is False
    assert accepts(free, '{"name": "now", "arguments": {"a": 1}}') is False
    assert accepts(free, '{"name": "Ann"} or text') is True


# Apertus.


SEARCH = call(0, "search", '{"query": "a"}')


APERTUS_SAMPLES = [
    ('<|tools_prefix|>[{"search": {"query": "a"}}, {"now": {}}]<|tools_suffix|>ok',
     [*SEARCH, *call(1, "now", "{}"), Content("ok")]),
    ('<|tools_prefix|>[{"search": {"query": "a"}', SEARCH),
    ('<|tools_prefix|>[{"search": {"query": "a',
     call(0, "search", '{"query": "a', complete=False)),
    ("<|tools_prefix|>[]<|tools_suffix|>", [Content("<|tools_prefix|>[]<|tools_suffix|>")]),
    ("<|tools_prefix|>x", [Content("<|tools_prefix|>x")]),
]  # fmt: skip


# Granite 3 and 4.


GRANITE_SAMPLES = {
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
        [Content('<tool_call>{"name": "now", "arguments": "{a}"}</tool_call>')],
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


# Hermes, Qwen 2.5 and 3.


HERMES3_SAMPLES = {
    "compact": (
        '<tool_call>{"name":"search","arguments":{"query":"tea"}}</tool_call>',
        call(0, "search", '{"query":"tea"}'),
    ),
    "escapes, unicode and tags in strings": (
        r'<tool_call>{"name": "search", "arguments": '
        r'{"query": "\"{a}\"\\ \u00e9 ß 東 </tool_call>"}}</tool_call>',
        call(0, "search", r'{"query": "\"{a}\"\\ \u00e9 ß 東 </tool_call>"}'),
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
    "a closing tag": ("a</tool_call>", [Content("a</tool_call>")]),
    "malformed, then a call": (
        '<tool_call>{"name"}<tool_call>{"name": "now"}</tool_call>',
        [Content('<tool_call>{"name"}'), *call(0, "now", "{}")],
    ),
    "broken arguments": (
        '<tool_call>{"name": "search", "arguments": {"query": oops}}</tool_call>',
        [Content('<tool_call>{"name": "search", "arguments": {"query": oops}}</tool_call>')],
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
    "cut before the name": (
        '<tool_call>{"arguments": {"query": "tea"}, "na',
        [],
    ),
}


@pytest.mark.parametrize("seed", range(8))
def test_hermes3_grammar_fits_the_tokens_of_the_demo_model(seed: int) -> None:
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


# Llama 3: which text is a call, and has to follow its schema.


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ("plain", True),
        ('{"name": "Ann"}', True),
        ('so {"name": "now"}', True),
        ('{"name": "now", "parameters": {}}', True),
        (' {"name": "now"}', False),
        ('{"name": "now", "arguments": {}}', False),
        ('so <|python_tag|>{"name": "now", "parameters": {}}', True),
        ('so <|python_tag|>{"name": "Ann", "parameters": {}}', False),
    ],
)
def test_llama3_text_that_begins_as_a_call_is_constrained(text: str, is_accepted: bool) -> None:
    for specials in ((), LLAMA3.tags):
        grammar = call_grammar(LLAMA3, None, CallChoice(SHOP), prompt="")
        assert vocabulary(*specials).accepts(grammar, text) is is_accepted


# Mistral and Devstral, which read each other's calls.


MISTRAL_SAMPLES = {
    "a list": (
        '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "tea"}, "id": "abc123def"}]',
        call(0, "search", '{"query": "tea"}'),
    ),
    "a list without a tag": (
        '\n[{"name": "search", "arguments": {"query": "a"}}]',
        call(0, "search", '{"query": "a"}'),
    ),
    "named": ('[TOOL_CALLS]search[ARGS]{"query": "]"}', call(0, "search", '{"query": "]"}')),
    "named, without a separator": ('[TOOL_CALLS]now{"a": 1}', call(0, "now", '{"a": 1}')),
    "named, with an id": (
        '[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{"a": 1}',
        call(0, "now", '{"a": 1}'),
    ),
    "named, without arguments": (
        "[TOOL_CALLS]now[ARGS][TOOL_CALLS]now[ARGS]{}",
        call(0, "now", "{}") + call(1, "now", "{}"),
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
        [Content('[TOOL_CALLS]now[ARGS]{"a": }')],
    ),
    "cut": ('[TOOL_CALLS]now[ARGS]{"a": [1', call(0, "now", '{"a": [1', complete=False)),
}


# Phi 4 mini.


PHI4_SAMPLES = {
    "between tags": (
        '<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>',
        call(0, "now", "{}"),
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
}


# xLAM.


XLAM_SAMPLES = [
    ('[{"name": "search", "arguments": {"query": "a"}}, {"name": "now", "arguments": {}}]',
     [*SEARCH, *call(1, "now", "{}")]),
    ('I help.\n```json\n[{"name": "search", "arguments": {"query": "a"}}]\n```',
     [Content("I help."), *SEARCH]),
    ('I look.[TOOL_CALLS][{"name": "search", "arguments": {"query": "a"}}]',
     [Content("I look."), *SEARCH]),
    ('I look.<tool_call>[{"name": "search", "arguments": {"query": "a"}}]</tool_call>',
     [Content("I look."), *SEARCH]),
    ("[1, 2] is a list", [Content("[1, 2] is a list")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tool_format", "text", "pieces"),
    samples(
        (PLAIN_JSON, PLAIN_JSON_SAMPLES),
        (APERTUS, APERTUS_SAMPLES),
        (GRANITE, GRANITE_SAMPLES),
        (HERMES3, HERMES3_SAMPLES),
        ((MISTRAL, DEVSTRAL), MISTRAL_SAMPLES),
        (PHI4, PHI4_SAMPLES),
        (XLAM, XLAM_SAMPLES),
    ),
)
def test_sample_of_a_json_format_gives_its_pieces_however_cut(
    tool_format: ToolFormat, text: str, pieces: list[Piece]
) -> None:
    check_sample(tool_format, text, pieces, SHOP)
