"""Answers in the form in which each family of models writes them, token for token: calls with
nested values, after text and thoughts, several, cut short, and what the models get wrong."""

from __future__ import annotations

import json
import random
import re
from typing import NamedTuple

import pytest

from fastovms.text.output import output_parser
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.tools import TOOL_FORMATS, Tool
from tests.text.parsing import parse, said
from tests.text.tools.family_calls import FAMILIES, Call

TOOLS = [
    Tool(
        "get_weather",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "detailed": {"type": "boolean"},
            },
            "required": ["city"],
        },
    ),
    Tool(
        "write_file",
        {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            "required": ["path", "content"],
        },
    ),
    Tool(
        "book",
        {
            "type": "object",
            "properties": {
                "guests": {"type": "array", "items": {"type": "object"}},
                "options": {"type": "object"},
                "price": {"type": "number"},
                "note": {"type": ["string", "null"]},
            },
        },
    ),
    Tool("get_current_time", {"type": "object", "properties": {}}),
]

PARIS = ("get_weather", {"city": "Paris"})
WEEK = ("get_weather", {"city": "São Paulo", "days": 7, "units": "celsius", "detailed": True})
TIME = ("get_current_time", {})
CODE = 'def f(x):\n    return {"a": [x, \'}\'], "b": "</x>\\n"}  # "quoted" \\ done\n'
FILE = ("write_file", {"path": "src/a b.py", "content": CODE})
BOOK = (
    "book",
    {
        "guests": [{"name": 'Zoë "Z" O\'Neil', "age": 5}, {"name": "李雷", "age": None}],
        "options": {"smoking": False, "rooms": [1, 2.5, []], "deep": {"er": {"est": {}}}},
        "price": -1.5e3,
        "note": None,
    },
)
CALLS = (PARIS, WEEK, TIME, FILE, BOOK)


class Answer(NamedTuple):
    """`calls` with arguments as text are cut short."""

    text: str
    calls: tuple[Call, ...] = ()
    content: str = ""
    reasoning: str = ""
    prompt: str = ""


THOUGHTS = {
    "gptoss": "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant",
    "onyx": " to=self<|message|>I think.<|eom|><|start|>assistant",
    "gemma4": "<|channel>thought\nI think.\n<channel|>",
}
TEXTS = {
    "gptoss": "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant",
    "onyx": " to=user<|message|>I look.<|eom|><|start|>assistant",
    "functionary_v32": "all\nI look.\n>>>",
}
NO_TEXT_BEFORE = {"json", "llama3", "pythonic", "xlam"}
"""Their calls are the whole answer."""

REASONING = {
    "deepseek": "deepseek", "deepseek_v31": "deepseek", "granite": "granite", "gptoss": "gptoss",
    "onyx": "onyx", "gemma4": "gemma4", "lfm2": "lfm2", "minicpm5": "minicpm5",
}  # fmt: skip


def pieces_of(text: str, seed: int) -> list[str]:
    """As tokens might cut it: words, tags, digits and signs, some of them in two or together."""
    rng = random.Random(seed)
    tokens = re.findall(r"<[^<>\s]{1,30}>|\[[A-Z_]+\]| ?\w+|\s+|[^\w\s]{1,3}", text)
    pieces: list[str] = []
    for token in tokens:
        if seed and rng.random() < 0.3 and len(token) > 1:
            at = rng.randrange(1, len(token))
            pieces += [token[:at], token[at:]]
        elif seed and pieces and rng.random() < 0.2:
            pieces[-1] += token
        else:
            pieces.append(token)
    assert "".join(pieces) == text
    return pieces


def read(name: str, reasoning: str | None, answer: Answer, texts: list[str]) -> Answer:
    parser = output_parser(
        TOOL_FORMATS[name],
        REASONING_FORMATS[reasoning] if reasoning else None,
        prompt=answer.prompt,
        tools=TOOLS,
    )
    content, thoughts, calls, completes = said(parse(parser, texts))
    found = tuple(
        (called, json.loads(arguments) if complete else arguments)
        for (called, arguments), complete in zip(calls, completes, strict=True)
    )
    return Answer(answer.text, found, content, thoughts, answer.prompt)


def check(name: str, answer: Answer, reasoning: str | None = None) -> None:
    for texts in (
        [answer.text],
        list(answer.text),
        *(pieces_of(answer.text, s) for s in range(12)),
    ):
        assert read(name, reasoning, answer, texts) == answer, texts


FAMILY = pytest.mark.parametrize("name", FAMILIES)


@FAMILY
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0])
def test_one_call_is_parsed_in_the_form_of_every_family(name: str, call: Call) -> None:
    check(name, Answer(FAMILIES[name](call), (call,)))


@FAMILY
def test_several_calls_are_parsed_in_the_form_of_every_family(name: str) -> None:
    check(name, Answer(FAMILIES[name](*CALLS), CALLS))


@pytest.mark.slow
@FAMILY
def test_thought_and_text_before_calls_are_parsed(name: str) -> None:
    reasoning = REASONING.get(name, "qwen3")
    thought = THOUGHTS.get(name, "<think>\nI think.\n</think>\n\n")
    calls = FAMILIES[name](PARIS, BOOK)
    check(name, Answer(thought + calls, (PARIS, BOOK), reasoning="I think."), reasoning)
    text = "" if name in NO_TEXT_BEFORE else "I look."
    written = TEXTS.get(name, f"{text}\n\n") if text else ""
    answer = Answer(written + calls, (PARIS, BOOK), text)
    check(name, answer, reasoning)
    answer = Answer(thought + written + calls, (PARIS, BOOK), text, "I think.")
    check(name, answer, reasoning)


@pytest.mark.nightly(
    but=("hermes3", "llama3", "qwen3coder", "gptoss", "mistral", "gemma4", "minimax_m2")
)
@pytest.mark.slow
@FAMILY
def test_calls_that_are_cut_short_are_incomplete(name: str) -> None:
    """At every third place: whole calls are right, one that is not is no JSON, and what is content
    is at most the markup of a call that has not begun. No arguments at all are empty ones, as in
    OVMS."""
    text = FAMILIES[name](FILE, BOOK)
    for end in range(len(text) % 3 or 3, len(text), 3):
        found = read(name, None, Answer(text[:end]), [text[:end]])
        assert read(name, None, Answer(text[:end]), list(text[:end])) == found
        for i, (called, told) in enumerate(found.calls):
            assert called == (FILE, BOOK)[i][0]
            assert isinstance(told, str) or told in ((FILE, BOOK)[i][1], {})
            assert isinstance(told, dict) or i == len(found.calls) - 1
        if found.calls:
            assert "src" not in found.content
            assert "Zo" not in found.content
            assert len(found.content) < 100
        if found.calls and isinstance(found.calls[-1][1], str):
            assert not found.content


@FAMILY
def test_text_without_calls_is_content(name: str) -> None:
    """With brackets, braces and tags of others in it."""
    text = 'Use `f(x)` or [1, 2] or {"a": 1}; <b>bold</b> & a < b.\n\n```json\n{"k": [1]}\n```\nÜ'
    written = text
    if name == "gptoss":
        written = f"<|channel|>final<|message|>{text}<|return|>"
    elif name == "functionary_v32":
        written = f"all\n{text}"
    elif name == "onyx":
        written = f" to=user<|message|>{text}<|eot|>"
    check(name, Answer(written, (), text))
