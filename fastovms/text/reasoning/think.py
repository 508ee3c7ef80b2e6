"""Qwen 3, DeepSeek and many others: `<think>why</think>answer`."""

from __future__ import annotations

from fastovms.text.reasoning.base import ReasoningFormat
from fastovms.text.scanner import Scanner, Steps
from fastovms.text.steps import Output

BEGIN = "<think>"
END = "</think>"


def parse(scan: Scanner, out: Output, is_inside: bool) -> Steps[None]:
    """Reasoning comes first or not at all. Without an end, all is reasoning."""
    out.in_reasoning = is_inside
    if not is_inside:
        space = yield from scan.space()
        if not (yield from scan.take(BEGIN)):
            out.content(space)
            return
    out.in_reasoning = True
    out.drop_space()
    yield from scan.until((END,), out.reasoning)
    out.in_reasoning = False
    out.drop_space()


QWEN3 = ReasoningFormat("qwen3", tags=(BEGIN, END), parse=parse, begin=BEGIN)
