"""Onyx: reasoning, calls and content in messages."""

from __future__ import annotations

import pytest

from fastovms.text.output_parser import output_parser
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.scanning.output import Content, Reasoning
from fastovms.text.tools.xml_formats.onyx import ONYX
from tests.text.parsing import parse
from tests.text.tools.checks import SHOP, call, check_sample

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


SEARCH = " to=search<|message|>" + block("search", ("query", "12"), ("limit", "3"))
SEARCHED = call(0, "search", '{"query":"12","limit":3}')

SAMPLES = {
    "an answer": (" to=user<|message|>It's to=me.<|eot|>", [Content("It's to=me.")]),
    "an answer without a recipient": ("<|message|>Hi.<|eot|>", [Content("Hi.")]),
    "a thought": (THOUGHT, [Reasoning("why")]),
    "a call": (f"{SEARCH}<|eom|>", SEARCHED),
    "a thought and a call": (f"{THOUGHT}{SEARCH}<|eot|>", [Reasoning("why"), *SEARCHED]),
    "all of them": (
        f"{THOUGHT}<|start|>assistant{SEARCH}<|eom|>"
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


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    check_sample(ONYX, *SAMPLES[name], SHOP, reasoning=REASONING)


def test_without_tools_the_arguments_of_calls_are_content() -> None:
    parser = output_parser(ONYX, REASONING, prompt="", tools=[])
    assert parse(parser, f"{THOUGHT}{SEARCH}<|eot|>") == [
        Reasoning("why"),
        Content('{"query":12,"limit":3}'),
    ]
