"""Lists the formats of tool calls, by the names that `--tool-parser` takes.

Each module reads one format and builds its grammar. It knows nothing of requests or of reasoning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastovms.text.parameters import CallChoice, Tool
from fastovms.text.tools.json_formats import (
    APERTUS,
    COMMAND_R,
    COMMAND_R7B,
    DEVSTRAL,
    GRANITE,
    GRANITE_20B,
    HERMES3,
    INTERNLM,
    JAMBA,
    LLAMA3,
    MISTRAL,
    NEMOTRON,
    PHI4,
    PLAIN_JSON,
    XLAM,
)
from fastovms.text.tools.named_formats import (
    DEEPSEEK,
    DEEPSEEK_V31,
    FUNCTIONARY_V31,
    FUNCTIONARY_V32,
    GPTOSS,
    KIMI_K2,
)
from fastovms.text.tools.python_formats import FUNCTIONGEMMA, GEMMA4, LFM2, OLMO3, PYTHONIC
from fastovms.text.tools.tool_format import ToolFormat
from fastovms.text.tools.xml_formats import (
    DEEPSEEK_V32,
    GLM45,
    HUNYUAN_V3,
    MINICPM5,
    MINIMAX_M2,
    MINIMAX_M3,
    ONYX,
    QWEN3CODER,
    SEED_OSS,
    STEP3,
)

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
    MINIMAX_M3,
    GPTOSS,
    ONYX,
    GEMMA4,
    FUNCTIONGEMMA,
    SEED_OSS,
    MINIMAX_M2,
    DEEPSEEK_V32,
    STEP3,
    KIMI_K2,
    APERTUS,
    COMMAND_R7B,
    COMMAND_R,
    INTERNLM,
    NEMOTRON,
    QWEN3CODER,
    HUNYUAN_V3,
    GLM45,
    MINICPM5,
    OLMO3,
    JAMBA,
    XLAM,
    LFM2,
    PHI4,
    DEVSTRAL,
    MISTRAL,
    DEEPSEEK,
    DEEPSEEK_V31,
    GRANITE_20B,
    GRANITE,
    PYTHONIC,
    FUNCTIONARY_V32,
    FUNCTIONARY_V31,
    HERMES3,
    LLAMA3,
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
    """Returns the format that a chat template, given as its source, asks the model for; the first
    match wins."""
    return next((found for found in _BY_RANK if found.is_taught_by(template)), None)
