"""Tests of `fastovms/text/tools/xml_formats.py`."""

from __future__ import annotations

import pytest

from fastovms.text.output import output_parser
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.scanning import CallArguments, Content, Piece, Reasoning
from fastovms.text.tools import Tool
from fastovms.text.tools.xml_formats import (
    GLM45,
    HUNYUAN_V3,
    MINICPM5,
    MINIMAX_M3,
    ONYX,
    QWEN3CODER,
    STEP3,
)
from tests.text.parsing import parse
from tests.text.tools.checks import SHOP, call, check_sample

# GLM 4.5 and later.


def element(name: str, *arguments: tuple[str, str], line: str = "\n") -> str:
    inner = "".join(
        f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}"
        for key, value in arguments
    )
    return f"<tool_call>{name}{line}{inner}</tool_call>"


SAMPLES = {
    "types by the schema": (
        element("search", ("query", "12"), ("limit", "5"), ("exact", "true")),
        call(0, "search", '{"query":"12","limit":5,"exact":true}'),
    ),
    "no line breaks": (
        element("search", ("query", " a\n"), line=""),
        call(0, "search", '{"query":" a\\n"}'),
    ),
    "several, content around": (
        f"Look:\n{element('now')}\n{element('now')}\nDone.",
        [Content("Look:"), *call(0, "now", "{}"), *call(1, "now", "{}"), Content("\n\n\nDone.")],
    ),
    "no value": (
        "<tool_call>search\n<arg_key>query</arg_key>\nx</tool_call>",
        [Content("<tool_call>search\n<arg_key>query</arg_key>\nx</tool_call>")],
    ),
    "cut": (
        "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>ab",
        call(0, "search", '{"query":"ab', complete=False),
    ),
    "no name": (
        "<tool_call>\n<arg_key>query</arg_key>",
        [Content("<tool_call>\n<arg_key>query</arg_key>")],
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_glm45_sample_gives_its_pieces_however_cut(name: str) -> None:
    text, pieces = SAMPLES[name]
    check_sample(GLM45, text, pieces, SHOP)


# Hunyuan 3.


SEARCH = call(0, "search", '{"query":"a"}')
NOW = call(0, "now", "{}")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("<tool_calls><tool_call>now<tool_sep></tool_call></tool_calls>", NOW),
        ("<tool_calls>\n<tool_call>now<tool_sep>\n</tool_call>\n</tool_calls>", NOW),
        ("<tool_calls><tool_call>search<tool_sep><arg_key>query</arg_key><arg_value>a</arg_value>"
         "</tool_call></tool_calls>", SEARCH),
        ("Checking.<tool_calls>\n<tool_call>search<tool_sep>\n<arg_key>query</arg_key>\n<arg_value>a"
         "</arg_value>\n</tool_call>\n<tool_call>now<tool_sep>\n</tool_call>\n</tool_calls>",
         [Content("Checking."), *SEARCH, *call(1, "now", "{}")]),
        ("<tool_calls>x", [Content("<tool_calls>x")]),
    ],
)  # fmt: skip
def test_hunyuan_v3_samples(text: str, pieces: list[Piece]) -> None:
    check_sample(HUNYUAN_V3, text, pieces, SHOP)


# MiniCPM 5.


MINICPM5_SAMPLES = {
    "one": (
        '<function name="search"><param name="query">tea</param>'
        '<param name="limit">3</param></function>',
        call(0, "search", '{"query":"tea","limit":3}'),
    ),
    "several, indented, content around": (
        'A <function name="now"></function>\n<function name="search">\n'
        '  <param name="query">a</param>\n</function> B',
        [
            Content("A"),
            *call(0, "now", "{}"),
            *call(1, "search", '{"query":"a"}'),
            Content(" \n B"),
        ],
    ),
    "line breaks around a value": (
        '<function name="search"><param name="query">\ntea\n</param></function>',
        call(0, "search", '{"query":"tea"}'),
    ),
    "CDATA": (
        '<function name="search"><param name="query"><![CDATA[<a>\n</param>&]]></param></function>',
        call(0, "search", r'{"query":"<a>\n</param>&"}'),
    ),
    "an unclosed function": (
        '<function name="search"><param name="query">te',
        call(0, "search", '{"query":"te', complete=False),
    ),
    "other markup": ('<function id="x">', [Content('<function id="x">')]),
    "CDATA that does not end with the value": (
        '<function name="search"><param name="query"><![CDATA[a]]>b</param></function>',
        [
            *call(0, "search", '{"query":"a', complete=False),
            Content("b</param></function>"),
        ],
    ),
}


@pytest.mark.parametrize("name", MINICPM5_SAMPLES)
def test_minicpm5_sample_gives_its_pieces_however_cut(name: str) -> None:
    check_sample(MINICPM5, *MINICPM5_SAMPLES[name], SHOP)


# MiniMax M3.


NS = "]<]minimax[>["
ORDER = Tool(
    "create_order",
    {
        "properties": {
            "user_id": {"type": "integer"},
            "urgent": {"type": "boolean"},
            "note": {"type": "string"},
            "shipping": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
            },
            "items": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"sku": {"type": "string"}, "qty": {"type": "integer"}},
                },
            },
            "more": {"type": "object"},
        }
    },
)


def minimax_m3_element(name: str, *children: str) -> str:
    return f"{NS}<{name}>{''.join(children)}{NS}</{name}>"


def invoke(*children: str) -> str:
    return f'{NS}<invoke name="create_order">{"".join(children)}{NS}</invoke>'


def section(*invokes: str) -> str:
    return "\n".join([f"{NS}<tool_call>", *invokes, f"{NS}</tool_call>"])


NESTED = invoke(
    minimax_m3_element("user_id", "42"),
    minimax_m3_element("urgent", "true"),
    minimax_m3_element("note", 'At the "desk".'),
    minimax_m3_element(
        "shipping", minimax_m3_element("city", "5"), minimax_m3_element("zip", "018956")
    ),
    minimax_m3_element(
        "items",
        minimax_m3_element(
            "item", minimax_m3_element("sku", "b-1"), minimax_m3_element("qty", "2")
        ),
        minimax_m3_element("item", minimax_m3_element("sku", "7")),
    ),
    minimax_m3_element(
        "more",
        minimax_m3_element("tag", "a"),
        minimax_m3_element("tag", "b"),
        minimax_m3_element("x", "y"),
    ),
)
ONE = invoke(minimax_m3_element("user_id", "1"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (
            f"I do.\n{section(NESTED)}",
            [
                Content("I do."),
                *call(
                    0,
                    "create_order",
                    r'{"user_id":42,"urgent":true,"note":"At the \"desk\".",'
                    '"shipping":{"city":"5","zip":18956},'
                    '"items":[{"sku":"b-1","qty":2},{"sku":"7"}],'
                    '"more":{"tag":["a","b"],"x":"y"}}',
                ),
            ],
        ),
        (section(ONE, ONE),
         call(0, "create_order", '{"user_id":1}') + call(1, "create_order", '{"user_id":1}')),
        (section(invoke()), call(0, "create_order", "{}")),
        (f"plain {NS}<tool_ca", [Content("plain ")]),
        (f"{NS}<tool_call>\n{NS}</user_id>", [Content(f"{NS}<tool_call>\n{NS}</user_id>")]),
        (
            f"{NS}<tool_call>\n{ONE}\n{NS}<invoke name=\"create_order\">{NS}<note>x",
            call(0, "create_order", '{"user_id":1}')
            + call(1, "create_order", '{"note":"x', complete=False),
        ),
    ],
)  # fmt: skip
def test_minimax_m3_samples(text: str, pieces: list[Piece]) -> None:
    check_sample(MINIMAX_M3, text, pieces, [ORDER])


# Onyx: reasoning, calls and content in messages.


REASONING = REASONING_FORMATS["onyx"]
THOUGHT = " to=self<|message|>why<|eom|>"


def block(name: str, *parameters: tuple[str, str]) -> str:
    inner = "".join(
        f'<atem:parameter name="{key}">{value}</atem:parameter>\n' for key, value in parameters
    )
    return (
        f'<atem:function_calls>\n<atem:invoke name="{name}">\n{inner}</atem:invoke>\n'
        "</atem:function_calls>"
    )


ONYX_SEARCH = " to=search<|message|>" + block("search", ("query", "12"), ("limit", "3"))
SEARCHED = call(0, "search", '{"query":"12","limit":3}')

ONYX_SAMPLES = {
    "an answer": (" to=user<|message|>It's to=me.<|eot|>", [Content("It's to=me.")]),
    "an answer without a recipient": ("<|message|>Hi.<|eot|>", [Content("Hi.")]),
    "a thought": (THOUGHT, [Reasoning("why")]),
    "a call": (f"{ONYX_SEARCH}<|eom|>", SEARCHED),
    "a thought and a call": (f"{THOUGHT}{ONYX_SEARCH}<|eot|>", [Reasoning("why"), *SEARCHED]),
    "all of them": (
        f"{THOUGHT}<|start|>assistant{ONYX_SEARCH}<|eom|>"
        "<|start|>assistant to=user<|message|>Wait.<|eot|>",
        [Reasoning("why"), *SEARCHED, Content("Wait.")],
    ),
    "several calls in a block": (
        ' to=now<|message|><atem:function_calls>\n<atem:invoke name="now"></atem:invoke>\n'
        '<atem:invoke name="now"></atem:invoke></atem:function_calls>',
        call(0, "now", "{}") + call(1, "now", "{}"),
    ),
    "without the block's tags": (
        ' to=now<|message|><atem:invoke name="now"></atem:invoke>',
        call(0, "now", "{}"),
    ),
    "text before a block": (
        f" to=now<|message|>Now.\n{block('now')}<|eot|>",
        [Content("Now."), *call(0, "now", "{}")],
    ),
    "a call without a block": (" to=now<|message|>oops<|eot|>", [Content("oops")]),
    "plain text": ("no framing at all", [Content("no framing at all")]),
    "cut": (
        ' to=search<|message|><atem:function_calls>\n<atem:invoke name="search">\n'
        '<atem:parameter name="query">te',
        call(0, "search", '{"query":"te', complete=False),
    ),
}


@pytest.mark.parametrize("name", ONYX_SAMPLES)
def test_onyx_sample_gives_its_pieces_however_cut(name: str) -> None:
    check_sample(ONYX, *ONYX_SAMPLES[name], SHOP, reasoning=REASONING)


def test_without_tools_the_arguments_of_calls_are_content() -> None:
    parser = output_parser(ONYX, REASONING, prompt="", tools=[])
    assert parse(parser, f"{THOUGHT}{ONYX_SEARCH}<|eot|>") == [
        Reasoning("why"),
        Content('{"query":12,"limit":3}'),
    ]


# Qwen 3 Coder.


def qwen3coder_element(name: str, *parameters: tuple[str, str]) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


UNION = Tool(
    "union",
    {
        "properties": {
            "a": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "b": {"type": ["integer", "string"]},
            "c": {"$ref": "#/$defs/Kind"},
            "d": {"type": "array", "items": {"type": "string"}},
        },
        "$defs": {"Kind": {"enum": ["1", "2"]}},
    },
)
TOOLS = [*SHOP, UNION]

QWEN3CODER_SAMPLES = {
    "types by the schema": (
        qwen3coder_element("search", ("query", "12"), ("limit", "5"), ("exact", "True")),
        call(0, "search", '{"query":"12","limit":5,"exact":true}'),
    ),
    "several, content around": (
        f"Look:\n\n{qwen3coder_element('now')}\n"
        f"{qwen3coder_element('search', ('query', 'a'))}\n\nDone.",
        [
            Content("Look:"),
            *call(0, "now", "{}"),
            *call(1, "search", '{"query":"a"}'),
            Content("\n\n\n\n\nDone."),
        ],
    ),
    "text as it is": (
        qwen3coder_element("search", ("query", '\n<b> "q" \\ \t</b>\n\n')),
        call(0, "search", r'{"query":"\n<b> \"q\" \\ \t</b>\n\n"}'),
    ),
    "objects": (
        qwen3coder_element("order", ("items", '[{"sku": "</parameter>"}]'), ("priority", "low")),
        call(0, "order", '{"items":[{"sku": "</parameter>"}],"priority":"low"}'),
    ),
    "objects as in Python": (
        qwen3coder_element("order", ("items", "[{'sku': 'a', 'ok': True}]")),
        call(0, "order", '{"items":[{"sku":"a","ok":true}]}'),
    ),
    "unions": (
        qwen3coder_element("union", ("a", "null"), ("b", "5"), ("c", "2"))
        + qwen3coder_element("union", ("a", "none"), ("b", "5a"), ("d", "oops")),
        call(0, "union", '{"a":null,"b":5,"c":"2"}')
        + call(1, "union", '{"a":"none","b":"5a","d":"oops"}'),
    ),
    "an unknown function": (
        qwen3coder_element("other", ("a", '{"b": 1}'), ("c", "x y"), ("d", "[1")),
        call(0, "other", '{"a":{"b": 1},"c":"x y","d":"[1"}'),
    ),
    "without the outer tags": (
        "<function=search><parameter=query>a</parameter></function>",
        call(0, "search", '{"query":"a"}'),
    ),
    "repeated": (
        qwen3coder_element("search", ("query", "a"), ("query", "b")),
        call(0, "search", '{"query":"a"}'),
    ),
    "a tag alone": ("<tool_call>\nx", [Content("<tool_call>\nx")]),
    "no parameters, no end": (
        "<function=now>\noops",
        [Content("<function=now>\noops")],
    ),
    "a name that is none": ("<function=a<b>", [Content("<function=a<b>")]),
    "broken between parameters": (
        "<function=search><parameter=query>a</parameter>oops</function>",
        [*call(0, "search", '{"query":"a"', complete=False), Content("oops</function>")],
    ),
    "a parameter without its end": (
        "<tool_call>\n<function=search>\n<parameter=query>\na\n<parameter=limit>\n5\n</function>\n"
        "</tool_call>",
        call(0, "search", '{"query":"a","limit":5}'),
    ),
    "the last parameter without its end": (
        "<function=union><parameter=d>\n[1]\n</function>",
        call(0, "union", '{"d":[1]}'),
    ),
    "markup within a line": (
        qwen3coder_element("search", ("query", "a <parameter=b> </function> c")),
        call(0, "search", '{"query":"a <parameter=b> </function> c"}'),
    ),
    "several in a block": (
        "<tool_call>\n<function=now>\n</function>\n<function=now>\n</function>\n</tool_call>\nok",
        [*call(0, "now", "{}"), *call(1, "now", "{}"), Content("ok")],
    ),
    "cut in a string": (
        "<function=search><parameter=query>\nab\n</para",
        call(0, "search", '{"query":"ab', complete=False),
    ),
    "cut in an object": (
        '<function=order><parameter=items>\n[{"sku": "',
        call(0, "order", '{"items":', complete=False),
    ),
}


@pytest.mark.parametrize("name", QWEN3CODER_SAMPLES)
def test_qwen3coder_sample_gives_its_pieces_however_cut(name: str) -> None:
    check_sample(QWEN3CODER, *QWEN3CODER_SAMPLES[name], TOOLS)


def test_string_parameters_stream_as_they_are_generated() -> None:
    parser = output_parser(QWEN3CODER, None, prompt="", tools=TOOLS)
    parser.push("<function=search><parameter=query>\n")
    assert [parser.push(char) for char in 'a"'] == [
        [CallArguments(0, "a")],
        [CallArguments(0, '\\"')],
    ]


# Step 3.


ALL, BEGIN = "<｜tool_calls_begin｜>", "<｜tool_call_begin｜>"
INVOKE = (
    '<steptml:invoke name="search"><steptml:parameter name="query">a</steptml:parameter>'
    "</steptml:invoke>"
)
CALL = f"{BEGIN}{INVOKE}<｜tool_call_end｜>"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (f"{ALL}{CALL}<｜tool_calls_end｜>", SEARCH),
        (f"{ALL}{CALL}<｜tool_sep｜>{CALL}<｜tool_calls_end｜>",
         [*SEARCH, *call(1, "search", '{"query":"a"}')]),
        (f"I look.\n\n{ALL}{CALL}<｜tool_calls_end｜>\n\nDone.",
         [Content("I look."), *SEARCH, Content("\n\n\n\nDone.")]),
        (f"{ALL}{BEGIN}function<｜tool_sep｜>{INVOKE}<｜tool_call_end｜><｜tool_calls_end｜>",
         SEARCH),
        (f"{ALL}{BEGIN}function<｜tool_sep｜>search\n{INVOKE}<｜tool_call_end｜><｜tool_calls_end｜>",
         SEARCH),
        (f'{ALL}{BEGIN}<steptml:invoke name="now"></steptml:invoke><｜tool_call_end｜>', NOW),
        (f"{ALL}x<｜tool_calls_end｜>", [Content(f"{ALL}x<｜tool_calls_end｜>")]),
    ],
)  # fmt: skip
def test_step3_sample_gives_its_pieces_however_cut(text: str, pieces: list[Piece]) -> None:
    check_sample(STEP3, text, pieces, SHOP)
