"""gpt-oss: reasoning, calls and content in messages."""

from __future__ import annotations

import pytest

from fastovms.text.output_parser import output_parser
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.scanning.output import Content, Reasoning
from fastovms.text.tools.named_formats.gptoss import GPTOSS
from tests.text.parsing import parse
from tests.text.tools.checks import SHOP, call, check_sample

REASONING = REASONING_FORMATS["gptoss"]
THOUGHT = "<|channel|>analysis<|message|>why<|end|>"
NEXT = "<|start|>assistant"
CALL = (
    '<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": "a"}<|call|>'
)
FINAL = "<|channel|>final<|message|>answer<|return|>"

SAMPLES = {
    "an answer": (FINAL, [Content("answer")]),
    "an answer whose end is the end of text": (
        "<|channel|>final<|message|>answer",
        [Content("answer")],
    ),
    "a thought and an answer": (THOUGHT + NEXT + FINAL, [Reasoning("why"), Content("answer")]),
    "a thought and a call": (
        THOUGHT + NEXT + CALL,
        [Reasoning("why"), *call(0, "search", '{"query": "a"}')],
    ),
    "the recipient first": (
        ' to=functions.search<|channel|>commentary json<|message|>{"query": "a"}',
        call(0, "search", '{"query": "a"}'),
    ),
    "the recipient behind the role": (
        THOUGHT + NEXT + " to=functions.now<|channel|>commentary <|constrain|>json<|message|>{}",
        [Reasoning("why"), *call(0, "now", "{}")],
    ),
    "several calls": (
        CALL + NEXT + CALL,
        call(0, "search", '{"query": "a"}') + call(1, "search", '{"query": "a"}'),
    ),
    "a call among thoughts": (
        "<|channel|>analysis to=functions.now<|message|>{}<|call|>",
        call(0, "now", "{}"),
    ),
    "a call without arguments": (
        "<|channel|>commentary to=functions.now<|message|><|call|>",
        call(0, "now", "{}"),
    ),
    "a recipient without its prefix": (
        '<|channel|>commentary to=search <|constrain|>json<|message|>{"query": "a"}<|call|>',
        call(0, "search", '{"query": "a"}'),
    ),
    "a recipient that is no function": (
        "<|channel|>commentary to=python code<|message|>1<|call|>",
        [Content("1")],
    ),
    "a preamble": (
        "<|channel|>commentary<|message|>I look.<|end|>" + NEXT + CALL,
        [Content("I look."), *call(0, "search", '{"query": "a"}')],
    ),
    "several thoughts and contents": (
        f"{THOUGHT}{NEXT}{THOUGHT}{NEXT}{FINAL}{NEXT}{FINAL}",
        [Reasoning("why\nwhy"), Content("answer answer")],
    ),
    "a thought without an end": (
        f"<|channel|>analysis<|message|>why{NEXT}{FINAL}",
        [Reasoning("why"), Content("answer")],
    ),
    "an unknown channel": ("<|channel|>other<|message|>text<|end|>", [Content("text")]),
    "plain text": ("to be or not", [Content("to be or not")]),
    "a header alone": ("<|channel|>final", []),
    "a header without a body": ("<|channel|>x<|end|>y", [Content("y")]),
    "a call that is no JSON": (
        "<|channel|>commentary to=functions.now<|message|>oops<|call|>" + NEXT + FINAL,
        [Content("oops answer")],
    ),
    "broken arguments": (
        '<|channel|>commentary to=functions.now<|message|>{"a": oops}<|call|>',
        [*call(0, "now", '{"a": ', complete=False), Content("oops}")],
    ),
    "cut": (
        '<|channel|>commentary to=functions.now<|message|>{"a',
        call(0, "now", '{"a', complete=False),
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    check_sample(GPTOSS, *SAMPLES[name], SHOP, reasoning=REASONING)


def test_the_prompt_may_have_begun_a_thought() -> None:
    prompt = "<|start|>assistant<|channel|>analysis<|message|>"
    text = f"why<|end|>{NEXT}{FINAL}"
    check_sample(
        GPTOSS,
        text,
        [Reasoning("why"), Content("answer")],
        SHOP,
        reasoning=REASONING,
        prompt=prompt,
    )


def test_without_tools_the_arguments_of_calls_are_content() -> None:
    parser = output_parser(GPTOSS, REASONING, prompt="", tools=[])
    assert parse(parser, THOUGHT + NEXT + CALL) == [
        Reasoning("why"),
        Content('{"query": "a"}'),
    ]


def test_without_reasoning_thoughts_are_content() -> None:
    parser = output_parser(GPTOSS, None, prompt="", tools=SHOP)
    assert parse(parser, THOUGHT + NEXT + FINAL) == [Content("why answer")]
