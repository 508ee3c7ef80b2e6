"""Qwen 3 Coder."""

from __future__ import annotations

import pytest

from fastovms.text.output_parser import output_parser
from fastovms.text.scanning.output import CallArguments, Content
from fastovms.text.scanning.tool import Tool
from fastovms.text.tools.xml_formats.qwen3coder import QWEN3CODER
from tests.text.tools.checks import SHOP, call, check_sample


def element(name: str, *parameters: tuple[str, str]) -> str:
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

SAMPLES = {
    "types by the schema": (
        element("search", ("query", "12"), ("limit", "5"), ("exact", "True")),
        call(0, "search", '{"query":"12","limit":5,"exact":true}'),
    ),
    "several, content around": (
        f"Look:\n\n{element('now')}\n{element('search', ('query', 'a'))}\n\nDone.",
        [
            Content("Look:"),
            *call(0, "now", "{}"),
            *call(1, "search", '{"query":"a"}'),
            Content("\n\n\n\n\nDone."),
        ],
    ),
    "text as it is": (
        element("search", ("query", '\n<b> "q" \\ \t</b>\n\n')),
        call(0, "search", r'{"query":"\n<b> \"q\" \\ \t</b>\n\n"}'),
    ),
    "objects": (
        element("order", ("items", '[{"sku": "</parameter>"}]'), ("priority", "low")),
        call(0, "order", '{"items":[{"sku": "</parameter>"}],"priority":"low"}'),
    ),
    "objects as in Python": (
        element("order", ("items", "[{'sku': 'a', 'ok': True}]")),
        call(0, "order", '{"items":[{"sku":"a","ok":true}]}'),
    ),
    "unions": (
        element("union", ("a", "null"), ("b", "5"), ("c", "2"))
        + element("union", ("a", "none"), ("b", "5a"), ("d", "oops")),
        call(0, "union", '{"a":null,"b":5,"c":"2"}')
        + call(1, "union", '{"a":"none","b":"5a","d":"oops"}'),
    ),
    "an unknown function": (
        element("other", ("a", '{"b": 1}'), ("c", "x y"), ("d", "[1")),
        call(0, "other", '{"a":{"b": 1},"c":"x y","d":"[1"}'),
    ),
    "without the outer tags": (
        "<function=search><parameter=query>a</parameter></function>",
        call(0, "search", '{"query":"a"}'),
    ),
    "repeated": (
        element("search", ("query", "a"), ("query", "b")),
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
        element("search", ("query", "a <parameter=b> </function> c")),
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


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    check_sample(QWEN3CODER, *SAMPLES[name], TOOLS)


def test_strings_are_told_as_they_are_generated() -> None:
    parser = output_parser(QWEN3CODER, None, prompt="", tools=TOOLS)
    parser.push("<function=search><parameter=query>\n")
    assert [parser.push(char) for char in 'a"'] == [
        [CallArguments(0, "a")],
        [CallArguments(0, '\\"')],
    ]
