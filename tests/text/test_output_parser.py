"""Reasoning and calls in one answer."""

from __future__ import annotations

import pytest

from fastovms.text.output_parser import opens_reasoning, output_parser
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Reasoning,
)
from fastovms.text.tools import TOOL_FORMATS, Tool
from tests.text.parsing import parse

HERMES3 = TOOL_FORMATS["hermes3"]
QWEN3 = REASONING_FORMATS["qwen3"]
TOOLS = [Tool("add")]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ADD = [CallBegin(0, "add"), CallArguments(0, '{"a": 1}'), CallEnd(0, True)]

SECOND = [CallBegin(1, "add"), CallArguments(1, '{"a": 1}'), CallEnd(1, True)]


@pytest.mark.parametrize(
    ("text", "prompt", "pieces"),
    [
        ("hello", "", [Content("hello")]),
        ("<think>\nwhy\n</think>\n\nhello", "", [Reasoning("why"), Content("hello")]),
        ("why</think>hello", "assistant\n<think>\n", [Reasoning("why"), Content("hello")]),
        ("why", "assistant\n<think>\n", [Reasoning("why")]),
        (f"<think>why\n{CALL}", "", [Reasoning("why"), *ADD]),
        (f"why\n{CALL}\n</think>\nok", "<think>\n", [Reasoning("why"), *ADD, Content("ok")]),
        (f"<think>{CALL}</think>{CALL}", "", [*ADD, *SECOND]),
        (
            f"<think>a <tool_call>b</tool_call> {{c</think>{CALL}",
            "",
            [Reasoning("a <tool_call>b</tool_call> {c"), *ADD],
        ),
        ("<think>a <tool_call></think>b", "", [Reasoning("a <tool_call>"), Content("b")]),
        (f"<think>\n\n</think>\n\nok\n{CALL}\n", "", [Content("ok"), *ADD]),
    ],
)
def test_reasoning_then_calls(text, prompt, pieces):
    for texts in ([text], text):
        parser = output_parser(HERMES3, QWEN3, prompt=prompt, tools=TOOLS)
        assert parse(parser, texts) == pieces


def test_without_formats_all_is_content():
    text = f"<think>why</think>{CALL}"
    assert parse(output_parser(None, None, prompt="", tools=TOOLS), text) == [Content(text)]


def test_without_tools_calls_are_content():
    parser = output_parser(HERMES3, QWEN3, prompt="", tools=[])
    assert parse(parser, ["<think>why</think>", CALL]) == [Reasoning("why"), Content(CALL)]


def test_in_reasoning_follows_the_text():
    parser = output_parser(None, QWEN3, prompt="", tools=[])
    states = []
    for text in ("<think>", "why", "</think>", "hello"):
        parser.push(text)
        states.append(parser.in_reasoning)
    assert states == [True, True, False, False]


def test_arguments_are_told_character_by_character():
    parser = output_parser(HERMES3, None, prompt="", tools=TOOLS)
    parser.push('<tool_call>{"name": "add", "arguments": {"text": "')
    assert [parser.push(char) for char in "ab"] == [
        [CallArguments(0, "a")],
        [CallArguments(0, "b")],
    ]


@pytest.mark.parametrize(
    ("name", "prompt", "is_inside"),
    [
        ("qwen3", "<|im_start|>assistant\n<think>\n", True),
        ("qwen3", "<think> is a tag", False),
        ("deepseek_r1", "", True),
        ("deepseek_r1", "<think>\n</think>\n", False),
        ("gptoss", "<|start|>assistant", False),
        ("onyx", "<|start|>assistant to=self<|message|>", True),
    ],
)
def test_whether_the_prompt_has_opened_reasoning(name: str, prompt: str, is_inside: bool) -> None:
    assert opens_reasoning(REASONING_FORMATS[name], prompt) is is_inside
