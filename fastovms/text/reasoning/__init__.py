"""Lists the formats of reasoning, by the names that `--reasoning-parser` takes.

Each finds what a model thinks in its text. Whether a client sees it is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastovms.text.reasoning.message_reasoning import GPTOSS, ONYX
from fastovms.text.reasoning.reasoning_format import ReasoningFormat
from fastovms.text.reasoning.think import THINK, think_format

__all__ = [
    "REASONING_FORMATS",
    "REASONING_FORMAT_ALIASES",
    "ReasoningFormat",
    "detect_reasoning_format",
]

# Granite 3.2 thinks in words, 3.3 between tags, with the answer between others.
_GRANITE = (
    THINK,
    ("Here is my thought process:", "Here is my response:"),
    ("Here's my thought process:", "Here's my response:"),
)

_BY_RANK: Final = (
    GPTOSS,
    ONYX,
    # The word behind the token names the kind of channel, and some answers have none.
    think_format(
        "gemma4",
        (("<|channel>thought\n", "<channel|>"), ("<|channel>", "<channel|>")),
        anywhere=True,
        marks=(("<|tool_call>call:",), ("<|channel>thought",)),
    ),
    think_format(
        "apertus",
        (("<|inner_prefix|>", "<|inner_suffix|>"),),
        anywhere=True,
        marks=(("<|inner_prefix|>",),),
    ),
    think_format(
        "apriel",
        (("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),),
        answer=("[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"),
        anywhere=True,
        marks=(("[BEGIN FINAL RESPONSE]",),),
    ),
    think_format(
        "command_r7b",
        (("<|START_THINKING|>", "<|END_THINKING|>"),),
        answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        anywhere=True,
        aliases=("cohere_command3", "cohere_command4"),
        marks=(("<|START_THINKING|>",),),
    ),
    think_format("seed_oss", (("<seed:think>", "</seed:think>"),), marks=(("<seed:think>",),)),
    think_format(
        "hunyuan_a13b",
        answer=("<answer>", "</answer>"),
        marks=(("<think>", "<answer>"),),
    ),
    think_format("minicpm5", marks=(('<param name="',),)),
    think_format(
        "lfm2", marks=(("<|tool_call_start|>", "message.thinking"), ("keep_past_thinking",))
    ),
    think_format(
        "granite",
        _GRANITE,
        answer=("<response>", "</response>"),
        marks=(("Here is my thought process:",), ("<think></think>", "<response></response>")),
    ),
    think_format(
        "ernie45", answer=("<response>", "</response>"), marks=(("<response>", "</think>"),)
    ),
    think_format("mistral", (("[THINK]", "[/THINK]"),), marks=(("[THINK]",),)),
    think_format("deepseek", aliases=("deepseek_v3",), marks=(("<｜Assistant｜>", "<think>"),)),
    think_format(
        "qwen3",
        aliases=(
            "glm45",
            "glm47",
            "hy_v3",
            "kimi_k2",
            "mimo",
            "minimax_m2",
            "nemotron_v3",
            "olmo3",
            "step3",
            "step3p5",
        ),
        marks=(("<think>",), ("content.split('</think>')",)),
    ),
    think_format("deepseek_r1", is_assumed=True),
)
"""The formats in the order in which a template is searched for their marks: what others have, too,
comes last."""

REASONING_FORMATS: Final[Mapping[str, ReasoningFormat]] = {
    found.name: found for found in sorted(_BY_RANK, key=lambda found: found.name)
}
REASONING_FORMAT_ALIASES: Final[Mapping[str, str]] = {
    alias: found.name for found in REASONING_FORMATS.values() for alias in found.aliases
}
"""The names of the formats by those that other servers have for them."""


def detect_reasoning_format(template: str) -> ReasoningFormat | None:
    """Returns the format in which a chat template, given as its source, knows thoughts, the first
    match; None = none."""
    return next((found for found in _BY_RANK if found.is_taught_by(template)), None)
