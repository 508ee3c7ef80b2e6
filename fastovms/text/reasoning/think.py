"""Qwen 3, DeepSeek and many others: `<think>why</think>answer`."""

from __future__ import annotations

from fastovms.text.reasoning.base import ReasoningFormat
from fastovms.text.rules import Rules
from fastovms.text.scanner import Scanner, Steps
from fastovms.text.steps import Output

BEGIN = "<think>"
END = "</think>"


def parse(scan: Scanner, out: Output, is_inside: bool) -> Steps[None]:
    """Reasoning comes first or not at all. Without an end, all is reasoning."""
    if not is_inside:
        space = yield from scan.space()
        if not (yield from scan.take(BEGIN)):
            out.content(space)
            return
    out.begin_reasoning()
    yield from scan.until((END,), out.reasoning)
    out.end_reasoning()


def write_rules(rules: Rules, is_inside: bool) -> str:
    reasoning = f"until_{rules.tag(END)} /\\n*/"
    return reasoning if is_inside else f"({rules.tag(BEGIN)} {reasoning})?"


QWEN3 = ReasoningFormat("qwen3", tags=(BEGIN, END), parse=parse, rules=write_rules, begin=BEGIN)
