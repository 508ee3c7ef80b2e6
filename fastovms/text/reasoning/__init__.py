"""Formats of reasoning, by the names that `--reasoning-parser` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastovms.text.reasoning.base import ReasoningFormat
from fastovms.text.reasoning.think import QWEN3

__all__ = ["REASONING_FORMATS", "ReasoningFormat", "detect_reasoning_format"]

REASONING_FORMATS: Final[Mapping[str, ReasoningFormat]] = {
    format.name: format for format in (QWEN3,)
}

_MARKERS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (("qwen3", ("<think>",)),)
"""What a template that teaches a format holds, all of it; the first match wins."""


def detect_reasoning_format(template: str) -> ReasoningFormat | None:
    """The format that a chat template, given as its source, knows thoughts in."""
    for name, markers in _MARKERS:
        if all(marker in template for marker in markers):
            return REASONING_FORMATS[name]
    return None
