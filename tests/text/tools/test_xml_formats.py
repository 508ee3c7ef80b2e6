"""Tests of `fastovms/text/tools/xml_formats.py`."""

from __future__ import annotations

import pytest

from fastovms.text.output import output_parser
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.scanning import CallArguments, CallEnd, Content, Piece, Reasoning
from fastovms.text.tools import Tool, ToolFormat
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
from tests.text.tools.checks import SHOP, call, check_sample, samples

# GLM 4.5 and later.


def element(name: str, *arguments: tuple[str, str], line: str = "\n") -> str:
    inner = "".join(
        f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}"
        for key, value in arguments
    )
    return f"<tool_call>{name}{line}{inner}</tool_call>"


GLM45_SAMPLES = {
    "types by the schema": (
        element("search", ("query", "12"), ("limit", "5"), ("exact", "true")),
        call(0, "search", '{"query":"12","limit":5,"exact":true}'),
    ),
    "no line breaks": (
        element("search", ("query", " a\n"), line=""),
        call(0, "search", '{"query":" a\\n"}'),
    ),
    "no value": (
        "<tool_call>search\n<arg_key>query</arg_key>\nx</tool_call>",
        [Content("<tool_call>search\n<arg_key>query</arg_key>\nx</tool_call>")],
    ),
    "no name": (
        "<tool_call>\n<arg_key>query</arg_key>",
        [Content("<tool_call>\n<arg_key>query</arg_key>")],
    ),
}


# Hunyuan 3.


SEARCH = call(0, "search", '{"query":"a"}')
NOW = call(0, "now", "{}")


HUNYUAN_V3_SAMPLES = [
    ("<tool_calls><tool_call>now<tool_sep></tool_call></tool_calls>", NOW),
    ("Checking.<tool_calls>\n<tool_call>search<tool_sep>\n<arg_key>query</arg_key>\n<arg_value>a"
     "</arg_value>\n</tool_call>\n<tool_call>now<tool_sep>\n</tool_call>\n</tool_calls>",
     [Content("Checking."), *SEARCH, *call(1, "now", "{}")]),
    ("<tool_calls>x", [Content("<tool_calls>x")]),
]  # fmt: skip


# MiniCPM 5.


MINICPM5_SAMPLES = {
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
    "other markup": ('<function id="x">', [Content('<function id="x">')]),
    "CDATA that does not end with the value": (
        '<function name="search"><param name="query"><![CDATA[a]]>b</param></function>',
        [
            *call(0, "search", '{"query":"a', complete=False),
            Content("b</param></function>"),
        ],
    ),
}


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


def tag(name: str, *children: str) -> str:
    return f"{NS}<{name}>{''.join(children)}{NS}</{name}>"


def invoke(*children: str) -> str:
    return f'{NS}<invoke name="create_order">{"".join(children)}{NS}</invoke>'


def section(*invokes: str) -> str:
    return "\n".join([f"{NS}<tool_call>", *invokes, f"{NS}</tool_call>"])


NESTED = invoke(
    tag("user_id", "42"),
    tag("urgent", "true"),
    tag("note", 'At the "desk".'),
    tag("shipping", tag("city", "5"), tag("zip", "018956")),
    tag(
        "items",
        tag("item", tag("sku", "b-1"), tag("qty", "2")),
        tag("item", tag("sku", "7")),
    ),
    tag(
        "more",
        tag("tag", "a"),
        tag("tag", "b"),
        tag("x", "y"),
    ),
)
ONE = invoke(tag("user_id", "1"))


MINIMAX_M3_SAMPLES = [
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
    (f"plain {NS}<tool_ca", [Content("plain ")]),
    (f"{NS}<tool_call>\n{NS}</user_id>", [Content(f"{NS}<tool_call>\n{NS}</user_id>")]),
    (
        f"{NS}<tool_call>\n{ONE}\n{NS}<invoke name=\"create_order\">{NS}<note>x",
        call(0, "create_order", '{"user_id":1}')
        + call(1, "create_order", '{"note":"x', complete=False),
    ),
]  # fmt: skip


def test_minimax_m3_elements_nest_to_a_limit() -> None:
    parser = output_parser(MINIMAX_M3, None, prompt="", tools=[ORDER])
    opened = f'{NS}<tool_call>\n{NS}<invoke name="create_order">' + f"{NS}<a>" * 50
    assert parse(parser, [opened])[-1] != CallEnd(0, True)


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


def test_onyx_without_tools_shows_arguments_as_content() -> None:
    parser = output_parser(ONYX, REASONING, prompt="", tools=[])
    assert parse(parser, f"{THOUGHT}{ONYX_SEARCH}<|eot|>") == [
        Reasoning("why"),
        Content('{"query":12,"limit":3}'),
    ]


# Qwen 3 Coder.


def function(name: str, *parameters: tuple[str, str]) -> str:
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
        function("search", ("query", "12"), ("limit", "5"), ("exact", "True")),
        call(0, "search", '{"query":"12","limit":5,"exact":true}'),
    ),
    "objects": (
        function("order", ("items", '[{"sku": "</parameter>"}]'), ("priority", "low")),
        call(0, "order", '{"items":[{"sku": "</parameter>"}],"priority":"low"}'),
    ),
    "objects as in Python": (
        function("order", ("items", "[{'sku': 'a', 'ok': True}]")),
        call(0, "order", '{"items":[{"sku":"a","ok":true}]}'),
    ),
    "unions": (
        function("union", ("a", "null"), ("b", "5"), ("c", "2"))
        + function("union", ("a", "none"), ("b", "5a"), ("d", "oops")),
        call(0, "union", '{"a":null,"b":5,"c":"2"}')
        + call(1, "union", '{"a":"none","b":"5a","d":"oops"}'),
    ),
    "an unknown function": (
        function("other", ("a", '{"b": 1}'), ("c", "x y"), ("d", "[1")),
        call(0, "other", '{"a":{"b": 1},"c":"x y","d":"[1"}'),
    ),
    "without the outer tags": (
        "<function=search><parameter=query>a</parameter></function>",
        call(0, "search", '{"query":"a"}'),
    ),
    "repeated": (
        function("search", ("query", "a"), ("query", "b")),
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
        function("search", ("query", "a <parameter=b> </function> c")),
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
}


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


STEP3_SAMPLES = [
    (f"{ALL}{BEGIN}function<｜tool_sep｜>{INVOKE}<｜tool_call_end｜><｜tool_calls_end｜>",
     SEARCH),
    (f"{ALL}{BEGIN}function<｜tool_sep｜>search\n{INVOKE}<｜tool_call_end｜><｜tool_calls_end｜>",
     SEARCH),
    (f'{ALL}{BEGIN}<steptml:invoke name="now"></steptml:invoke><｜tool_call_end｜>', NOW),
    (f"{ALL}x<｜tool_calls_end｜>", [Content(f"{ALL}x<｜tool_calls_end｜>")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tool_format", "text", "pieces"),
    samples(
        (GLM45, GLM45_SAMPLES),
        (HUNYUAN_V3, HUNYUAN_V3_SAMPLES),
        (MINICPM5, MINICPM5_SAMPLES),
        (MINIMAX_M3, MINIMAX_M3_SAMPLES, pytest.mark.slow),
        (ONYX, ONYX_SAMPLES),
        (QWEN3CODER, QWEN3CODER_SAMPLES),
        (STEP3, STEP3_SAMPLES),
    ),
)
def test_sample_of_an_xml_format_gives_its_pieces_however_cut(
    tool_format: ToolFormat, text: str, pieces: list[Piece]
) -> None:
    tools = {MINIMAX_M3.name: [ORDER], QWEN3CODER.name: TOOLS}.get(tool_format.name, SHOP)
    reasoning = REASONING if tool_format is ONYX else None
    check_sample(tool_format, text, pieces, tools, reasoning=reasoning)
