"""Formats of tool calls, by the names that `--tool-parser` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastovms.text.tools.base import CallChoice, Tool, ToolFormat
from fastovms.text.tools.hermes3 import HERMES3

__all__ = ["TOOL_FORMATS", "CallChoice", "Tool", "ToolFormat", "detect_tool_format"]

TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = {format.name: format for format in (HERMES3,)}

_MARKERS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (("hermes3", ("<tool_call>",)),)
"""What a template that teaches a format holds, all of it; the first match wins."""


def detect_tool_format(template: str) -> ToolFormat | None:
    """The format that a chat template, given as its source, asks the model for."""
    for name, markers in _MARKERS:
        if all(marker in template for marker in markers):
            return TOOL_FORMATS[name]
    return None
