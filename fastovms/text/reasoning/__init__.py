"""Lists the formats of reasoning, by the names that `--reasoning-parser` takes.

Each finds what a model thinks in its text. Whether a client sees it is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastovms.text.reasoning.message_reasoning import GPTOSS, ONYX
from fastovms.text.reasoning.reasoning_format import ReasoningFormat
from fastovms.text.reasoning.think import THINK, think_format

__all__ = ["REASONING_FORMATS", "ReasoningFormat", "detect_reasoning_format"]

# Granite 3.2 thinks in words, 3.3 between tags, with the answer between others.
_GRANITE = [
    THINK,
    ("Here is my thought process:", "Here is my response:"),
    ("Here's my thought process:", "Here's my response:"),
]

REASONING_FORMATS: Final[Mapping[str, ReasoningFormat]] = {
    reasoning_format.name: reasoning_format
    for reasoning_format in (
        think_format("deepseek"),
        think_format("deepseek_r1", is_assumed=True),
        think_format("gemma4", [("<|channel>thought", "<channel|>")]),
        GPTOSS,
        think_format("granite", _GRANITE, answer=("<response>", "</response>")),
        think_format("lfm2"),
        think_format("minicpm5"),
        think_format("mistral", [("[THINK]", "[/THINK]")]),
        ONYX,
        think_format("qwen3"),
    )
}

_MARKERS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("gptoss", ("<|channel|>",)),
    ("onyx", ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>")),
    ("gemma4", ("<|tool_call>call:",)),
    ("gemma4", ("<|channel>thought",)),
    ("minicpm5", ('<param name="',)),
    ("lfm2", ("<|tool_call_start|>", "message.thinking")),
    ("lfm2", ("keep_past_thinking",)),
    ("granite", ("Here is my thought process:",)),
    ("granite", ("<think></think>", "<response></response>")),
    ("mistral", ("[THINK]",)),
    ("deepseek", ("<｜Assistant｜>", "<think>")),
    ("qwen3", ("<think>",)),
    ("qwen3", ("content.split('</think>')",)),
)
"""The texts by which a template that teaches a format is known: it holds all of them. The first
match wins."""


def detect_reasoning_format(template: str) -> ReasoningFormat | None:
    """Returns the format in which a chat template, given as its source, knows thoughts; None =
    none."""
    for name, markers in _MARKERS:
        if all(marker in template for marker in markers):
            return REASONING_FORMATS[name]
    return None
