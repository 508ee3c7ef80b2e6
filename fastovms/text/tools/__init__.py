"""Lists the formats of tool calls, by the names that `--tool-parser` takes.

Each module reads one format and builds its grammar. It knows nothing of requests or of reasoning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.json_formats.apertus import APERTUS
from fastovms.text.tools.json_formats.command_r import COMMAND_R, COMMAND_R7B
from fastovms.text.tools.json_formats.granite import GRANITE
from fastovms.text.tools.json_formats.granite_20b import GRANITE_20B
from fastovms.text.tools.json_formats.hermes3 import HERMES3
from fastovms.text.tools.json_formats.internlm import INTERNLM
from fastovms.text.tools.json_formats.jamba import JAMBA
from fastovms.text.tools.json_formats.llama3 import LLAMA3
from fastovms.text.tools.json_formats.mistral import DEVSTRAL, MISTRAL
from fastovms.text.tools.json_formats.nemotron import NEMOTRON
from fastovms.text.tools.json_formats.phi4 import PHI4
from fastovms.text.tools.json_formats.plain_json import PLAIN_JSON
from fastovms.text.tools.json_formats.xlam import XLAM
from fastovms.text.tools.literal_formats.functiongemma import FUNCTIONGEMMA
from fastovms.text.tools.literal_formats.gemma4 import GEMMA4
from fastovms.text.tools.literal_formats.lfm2 import LFM2
from fastovms.text.tools.literal_formats.olmo3 import OLMO3
from fastovms.text.tools.literal_formats.pythonic import PYTHONIC
from fastovms.text.tools.named_formats.deepseek import DEEPSEEK, DEEPSEEK_V31
from fastovms.text.tools.named_formats.functionary import FUNCTIONARY_V31, FUNCTIONARY_V32
from fastovms.text.tools.named_formats.gptoss import GPTOSS
from fastovms.text.tools.named_formats.kimi_k2 import KIMI_K2
from fastovms.text.tools.tool_format import ToolFormat
from fastovms.text.tools.xml_formats.deepseek_v32 import DEEPSEEK_V32
from fastovms.text.tools.xml_formats.glm45 import GLM45
from fastovms.text.tools.xml_formats.hunyuan_v3 import HUNYUAN_V3
from fastovms.text.tools.xml_formats.minicpm5 import MINICPM5
from fastovms.text.tools.xml_formats.minimax_m2 import MINIMAX_M2
from fastovms.text.tools.xml_formats.minimax_m3 import MINIMAX_M3
from fastovms.text.tools.xml_formats.onyx import ONYX
from fastovms.text.tools.xml_formats.qwen3coder import QWEN3CODER
from fastovms.text.tools.xml_formats.seed_oss import SEED_OSS
from fastovms.text.tools.xml_formats.step3 import STEP3

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
"""The names of the formats by those that other servers have for them."""


def detect_tool_format(template: str) -> ToolFormat | None:
    """Returns the format that a chat template, given as its source, asks the model for; the first
    match wins."""
    return next((found for found in _BY_RANK if found.is_taught_by(template)), None)
