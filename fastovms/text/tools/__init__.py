"""Lists the formats of tool calls, by the names that `--tool-parser` takes.

Each module reads one format and builds its grammar. It knows nothing of requests or of reasoning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.deepseek import DEEPSEEK, DEEPSEEK_V31
from fastovms.text.tools.gemma4 import GEMMA4
from fastovms.text.tools.glm45 import GLM45
from fastovms.text.tools.gptoss import GPTOSS
from fastovms.text.tools.granite import GRANITE
from fastovms.text.tools.hermes3 import HERMES3
from fastovms.text.tools.lfm2 import LFM2
from fastovms.text.tools.llama3 import LLAMA3, PYTHONIC
from fastovms.text.tools.minicpm5 import MINICPM5
from fastovms.text.tools.mistral import DEVSTRAL, MISTRAL
from fastovms.text.tools.onyx import ONYX
from fastovms.text.tools.phi4 import PHI4
from fastovms.text.tools.qwen3coder import QWEN3CODER
from fastovms.text.tools.tool_format import ToolFormat

__all__ = ["TOOL_FORMATS", "CallChoice", "Tool", "ToolFormat", "detect_tool_format"]

TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = {
    tool_format.name: tool_format
    for tool_format in (
        DEEPSEEK,
        DEEPSEEK_V31,
        DEVSTRAL,
        GEMMA4,
        GLM45,
        GPTOSS,
        GRANITE,
        HERMES3,
        LFM2,
        LLAMA3,
        MINICPM5,
        MISTRAL,
        ONYX,
        PHI4,
        PYTHONIC,
        QWEN3CODER,
    )
}

_MARKERS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("gptoss", ("<|channel|>",)),
    ("onyx", ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>")),
    ("gemma4", ("<|tool_call>call:",)),
    ("qwen3coder", ("<function=", "<parameter=")),
    ("glm45", ("<arg_key>", "<arg_value>")),
    ("minicpm5", ('<param name="',)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("lfm2", ("<|assistant_tool_call|>",)),
    ("lfm2", ("keep_past_thinking",)),
    ("phi4", ("functools",)),
    ("phi4", ("<|tool|>", "<|/tool|>")),
    ("devstral", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("mistral", ("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")),
    ("deepseek", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    ("granite", ("<|tool_call|>",)),
    ("pythonic", ("<|python_start|>",)),
    ("llama3", ("<|python_tag|>",)),
    ("hermes3", ("<tool_call>",)),
    ("llama3", ("<|start_header_id|>", '"parameters":')),
)
"""The texts by which a template that teaches a format is known: it holds all of them. The first
match wins."""


def detect_tool_format(template: str) -> ToolFormat | None:
    """Returns the format that a chat template, given as its source, asks the model for."""
    for name, markers in _MARKERS:
        if all(marker in template for marker in markers):
            return TOOL_FORMATS[name]
    return None
