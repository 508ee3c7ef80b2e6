"""Tests of `fastovms/text/tools/named_formats.py`."""

from __future__ import annotations

import pytest

from fastovms.text.output import output_parser
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.scanning import Content, Piece, Reasoning
from fastovms.text.tools import ToolFormat
from fastovms.text.tools.named_formats import (
    DEEPSEEK,
    DEEPSEEK_V31,
    FUNCTIONARY_V31,
    FUNCTIONARY_V32,
    GPTOSS,
    KIMI_K2,
)
from tests.text.parsing import parse
from tests.text.tools.checks import SHOP, call, check_sample, samples

# DeepSeek V3, R1 and V3.1.


ALL, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def fenced(name: str, arguments: str) -> str:
    return f"{BEGIN}function{SEPARATOR}{name}\n```json\n{arguments}\n```{END}"


DEEPSEEK_SAMPLES = {
    "fenced": (
        "Let me see.\n\n" + ALL + fenced("search", '{"query": "```"}') + ALL_END,
        [Content("Let me see."), *call(0, "search", '{"query": "```"}')],
    ),
    "without a fence": (
        f'{ALL}{BEGIN}function{SEPARATOR}search{{"query": "a"}}{END}{ALL_END}',
        call(0, "search", '{"query": "a"}'),
    ),
    "without a list": (fenced("now", "{}"), call(0, "now", "{}")),
    "V3.1": (
        f'{ALL}{BEGIN}search{SEPARATOR}{{"query": "a"}}{END}'
        f"{BEGIN}now{SEPARATOR}{{}}{END}{ALL_END}",
        call(0, "search", '{"query": "a"}') + call(1, "now", "{}"),
    ),
    "V3.1, a function of that name": (
        f'{BEGIN}function{SEPARATOR}{{"a": 1}}{END}',
        call(0, "function", '{"a": 1}'),
    ),
    "no arguments": (f"{BEGIN}function{SEPARATOR}now\n{END}", call(0, "now", "{}")),
    "no separator": (f"{ALL}{BEGIN}now{END}", [Content(f"{ALL}{BEGIN}now{END}")]),
    "cut in the name": (f"{BEGIN}function{SEPARATOR}no", []),
    "no JSON": (
        f"{BEGIN}function{SEPARATOR}now\noops",
        [Content(f"{BEGIN}function{SEPARATOR}now\noops")],
    ),
}


# Functionary, in two versions.


SEARCH = call(0, "search", '{"query": "a"}')
ARGUMENTS = '{"query": "a"}'


FUNCTIONARY_V31_SAMPLES = [
    (f"<function=search>{ARGUMENTS}</function>", SEARCH),
    (f"A.<function=search>{ARGUMENTS}</function>\n<function=now></function>",
     [Content("A."), *SEARCH, *call(1, "now", "{}")]),
    ("<function=now>x", [Content("<function=now>x")]),
    ("<function=a", []),
]  # fmt: skip


FUNCTIONARY_V32_SAMPLES = [
    ("all\nHello", [Content("Hello")]),
    (f">>>all\nI look.\n>>>search\n{ARGUMENTS}", [Content("I look."), *SEARCH]),
    ("allow me", [Content("allow me")]),
    ("other\n{}", [Content("other\n{}")]),
    ("al", []),
]


# gpt-oss: reasoning, calls and content in messages.


REASONING = REASONING_FORMATS["gptoss"]
THOUGHT = "<|channel|>analysis<|message|>why<|end|>"
NEXT = "<|start|>assistant"
CALL = (
    '<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": "a"}<|call|>'
)
FINAL = "<|channel|>final<|message|>answer<|return|>"

GPTOSS_SAMPLES = {
    "an answer": (FINAL, [Content("answer")]),
    "the recipient first": (
        ' to=functions.search<|channel|>commentary json<|message|>{"query": "a"}',
        call(0, "search", '{"query": "a"}'),
    ),
    "the recipient behind the role": (
        THOUGHT + NEXT + " to=functions.now<|channel|>commentary <|constrain|>json<|message|>{}",
        [Reasoning("why"), *call(0, "now", "{}")],
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
    "plain text": ("to be or not", [Content("to be or not")]),
    "a header alone": ("<|channel|>final", []),
    "a header without a body": ("<|channel|>x<|end|>y", [Content("y")]),
    "a call that is no JSON": (
        "<|channel|>commentary to=functions.now<|message|>oops<|call|>" + NEXT + FINAL,
        [Content("oops answer")],
    ),
    "broken arguments": (
        '<|channel|>commentary to=functions.now<|message|>{"a": oops}<|call|>',
        [Content('{"a": oops}')],
    ),
    "cut": (
        '<|channel|>commentary to=functions.now<|message|>{"a',
        call(0, "now", '{"a', complete=False),
    ),
}


def test_gptoss_prompt_may_have_begun_a_thought() -> None:
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


def test_gptoss_without_tools_shows_arguments_as_content() -> None:
    parser = output_parser(GPTOSS, REASONING, prompt="", tools=[])
    assert parse(parser, THOUGHT + NEXT + CALL) == [
        Reasoning("why"),
        Content('{"query": "a"}'),
    ]


def test_gptoss_without_reasoning_parser_returns_reasoning_as_content() -> None:
    parser = output_parser(GPTOSS, None, prompt="", tools=SHOP)
    assert parse(parser, THOUGHT + NEXT + FINAL) == [Content("why answer")]


# Kimi K2.


def one(name: str, arguments: str = '{"query": "a"}') -> str:
    begin = f"<|tool_call_begin|>{name}<|tool_call_argument_begin|>"
    return f"{begin}{arguments}<|tool_call_end|>"


def section(*calls: str) -> str:
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


KIMI_K2_SAMPLES = [
    (section(one("functions.search:0"), one("functions.now:1", "{}")),
     [*SEARCH, *call(1, "now", "{}")]),
    (section(one("search:0")), SEARCH),
    (section(one("functions.search:0 ")), SEARCH),
    (one("functions.search:0"), SEARCH),
    (section("<|tool_call_begin|>functions.now:0<|tool_call_end|>"),
     [Content(section("<|tool_call_begin|>functions.now:0<|tool_call_end|>"))]),
    ("<|tool_calls_section_begin|>x", [Content("<|tool_calls_section_begin|>x")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tool_format", "text", "pieces"),
    samples(
        ((DEEPSEEK, DEEPSEEK_V31), DEEPSEEK_SAMPLES),
        (FUNCTIONARY_V31, FUNCTIONARY_V31_SAMPLES),
        (FUNCTIONARY_V32, FUNCTIONARY_V32_SAMPLES),
        (GPTOSS, GPTOSS_SAMPLES),
        (KIMI_K2, KIMI_K2_SAMPLES),
    ),
)
def test_sample_of_a_format_with_names_gives_its_pieces_however_cut(
    tool_format: ToolFormat, text: str, pieces: list[Piece]
) -> None:
    reasoning = REASONING if tool_format is GPTOSS else None
    check_sample(tool_format, text, pieces, SHOP, reasoning=reasoning)
