"""Describes reasoning in messages of its own, as gpt-oss and Onyx write it."""

from __future__ import annotations

from fastovms.text.reasoning.reasoning_format import ReasoningFormat
from fastovms.text.scanning.rules import Rules, literal
from fastovms.text.tools import gptoss, onyx


def _gptoss_rules(rules: Rules, is_inside: bool) -> str:
    rest = f"until_{rules.tag(gptoss.END)} {rules.tag(gptoss.START)} {literal('assistant')}"
    if is_inside:
        return rest
    begin = f"{rules.tag(gptoss.CHANNEL)} {literal('analysis')} {rules.tag(gptoss.MESSAGE)}"
    return f"({begin} {rest})?"


def _gptoss_answer(rules: Rules) -> str:
    return f"{rules.tag(gptoss.CHANNEL)} {literal('final')} {rules.tag(gptoss.MESSAGE)}"


def _onyx_rules(rules: Rules, is_inside: bool) -> str:
    start = f"{rules.tag(onyx.START)} {literal('assistant')}"
    rest = f"until_{rules.tag(onyx.END_MESSAGE)} ({start})?"
    return rest if is_inside else f"({literal(' to=self')} {rules.tag(onyx.MESSAGE)} {rest})?"


def _onyx_answer(rules: Rules) -> str:
    return f"{literal(' to=user')} {rules.tag(onyx.MESSAGE)}"


GPTOSS = ReasoningFormat(
    "gptoss",
    tags=gptoss.TAGS,
    parse=gptoss.MESSAGES,
    rules=_gptoss_rules,
    begin=f"{gptoss.CHANNEL}analysis{gptoss.MESSAGE}",
    open_answer=_gptoss_answer,
)
ONYX = ReasoningFormat(
    "onyx",
    tags=onyx.TAGS,
    parse=onyx.MESSAGES,
    rules=_onyx_rules,
    begin=f"to=self{onyx.MESSAGE}",
    open_answer=_onyx_answer,
)
