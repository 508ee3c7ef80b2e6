"""Lists the formats of tool calls, by the names that `--tool-parser` takes.

Each module reads one format and builds its grammar. It knows nothing of requests or of reasoning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastovms.text.parameters import CallChoice, Tool
from fastovms.text.tools import json_formats, named_formats, python_calls, xml_formats
from fastovms.text.tools.json_formats import PLAIN_JSON
from fastovms.text.tools.tool_format import ToolFormat

__all__ = [
    "PLAIN_JSON",
    "TOOL_FORMATS",
    "TOOL_FORMAT_ALIASES",
    "CallChoice",
    "Tool",
    "ToolFormat",
    "detect_tool_format",
]

_BY_RANK: Final = (
    xml_formats.MINIMAX_M3,
    named_formats.GPTOSS,
    xml_formats.ONYX,
    python_calls.GEMMA4,
    python_calls.FUNCTIONGEMMA,
    xml_formats.SEED_OSS,
    xml_formats.MINIMAX_M2,
    xml_formats.DEEPSEEK_V32,
    xml_formats.STEP3,
    named_formats.KIMI_K2,
    json_formats.APERTUS,
    json_formats.COMMAND_R7B,
    json_formats.COMMAND_R,
    json_formats.INTERNLM,
    json_formats.NEMOTRON,
    xml_formats.QWEN3CODER,
    xml_formats.HUNYUAN_V3,
    xml_formats.GLM45,
    xml_formats.MINICPM5,
    python_calls.OLMO3,
    json_formats.JAMBA,
    json_formats.XLAM,
    python_calls.LFM2,
    json_formats.PHI4,
    json_formats.DEVSTRAL,
    json_formats.MISTRAL,
    named_formats.DEEPSEEK,
    named_formats.DEEPSEEK_V31,
    json_formats.GRANITE_20B,
    json_formats.GRANITE,
    python_calls.PYTHONIC,
    named_formats.FUNCTIONARY_V32,
    named_formats.FUNCTIONARY_V31,
    json_formats.HERMES3,
    json_formats.LLAMA3,
    PLAIN_JSON,
)
"""The formats in the order in which a template is searched for their marks: what others have, too,
comes last."""

TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = {
    found.name: found for found in sorted(_BY_RANK, key=lambda found: found.name)
}
TOOL_FORMAT_ALIASES: Final[Mapping[str, str]] = {
    alias: found.name for found in TOOL_FORMATS.values() for alias in found.aliases
}
"""The names of the formats by those of other servers."""


def detect_tool_format(template: str) -> ToolFormat | None:
    """Returns the format that a chat template, given as its source, tells the model to use; the
    first match wins."""
    return next((found for found in _BY_RANK if found.is_taught_by(template)), None)
