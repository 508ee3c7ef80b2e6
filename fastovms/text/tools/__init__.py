"""The table of tool-call formats, by the names that `--tool-parser` accepts.

Each module parses formats and builds their grammars. It does not depend on requests or reasoning,
and is imported when one of its formats is used.
"""

from __future__ import annotations

from typing import Final

from fastovms.text.parameters import CallChoice, Tool
from fastovms.text.tools.tool_format import FormatRow, Formats, ToolFormat, first_shown_format

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
    FormatRow("minimax_m3", "xml_formats.MINIMAX_M3", (("]<]minimax[>[",),)),
    FormatRow("gptoss", "named_formats.GPTOSS", (("<|channel|>",),), ("openai",)),
    FormatRow(
        "onyx",
        "xml_formats.ONYX",
        (("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),),
        ("muse_glimmer",),
    ),
    FormatRow("gemma4", "python_calls.GEMMA4", (("<|tool_call>call:",),)),
    FormatRow("functiongemma", "python_calls.FUNCTIONGEMMA", (("<start_function_call>",),)),
    FormatRow("seed_oss", "xml_formats.SEED_OSS", (("<seed:tool_call>",),)),
    FormatRow("minimax_m2", "xml_formats.MINIMAX_M2", (("<minimax:tool_call>",),)),
    FormatRow("deepseek_v32", "xml_formats.DEEPSEEK_V32", (("｜DSML｜",),)),
    FormatRow("step3", "xml_formats.STEP3", (("steptml:invoke",),)),
    FormatRow("kimi_k2", "named_formats.KIMI_K2", (("<|tool_calls_section_begin|>",),)),
    FormatRow("apertus", "json_formats.APERTUS", (("<|tools_prefix|>",),)),
    FormatRow(
        "command_r7b",
        "json_formats.COMMAND_R7B",
        (("<|START_ACTION|>",),),
        aliases=("cohere_command3", "cohere_command4"),
    ),
    FormatRow(
        "command_r",
        "json_formats.COMMAND_R",
        (("Write 'Action:' followed by",),),
        aliases=("command_r_plus",),
    ),
    FormatRow("internlm", "json_formats.INTERNLM", (("<|action_start|>",),)),
    FormatRow(
        "nemotron",
        "json_formats.NEMOTRON",
        (("<TOOLCALL>",),),
        aliases=("nemotron_json", "nemotron_nano_v2"),
    ),
    FormatRow(
        "qwen3coder",
        "xml_formats.QWEN3CODER",
        (("<tool_call>", "<function=", "<parameter="),),
        aliases=("qwen3_coder", "qwen3_xml", "step3p5", "mimo", "nemotron_v3"),
    ),
    FormatRow("hunyuan_v3", "xml_formats.HUNYUAN_V3", (("<tool_sep>", "<arg_key>"),), ("hy_v3",)),
    FormatRow("glm45", "xml_formats.GLM45", (("<arg_key>", "<arg_value>"),), ("glm47",)),
    FormatRow("minicpm5", "xml_formats.MINICPM5", (('<param name="',),)),
    FormatRow("olmo3", "python_calls.OLMO3", (("<function_calls>",),)),
    FormatRow("jamba", "json_formats.JAMBA", (("<tool_calls>",),), ("hunyuan_a13b", "apriel")),
    FormatRow("xlam", "json_formats.XLAM", (("make calls in a single JSON array",),)),
    FormatRow(
        "lfm2",
        "python_calls.LFM2",
        (
            ("<|tool_call_start|>",),
            ("<|tool_list_start|>",),
            ("<|assistant_tool_call|>",),
            ("keep_past_thinking",),
        ),
    ),
    FormatRow(
        "phi4",
        "json_formats.PHI4",
        (("functools",), ("<|tool|>", "<|/tool|>")),
        aliases=("phi4_mini_json",),
    ),
    FormatRow("devstral", "json_formats.DEVSTRAL", (("[TOOL_CALLS]", "[ARGS]"),)),
    FormatRow(
        "mistral",
        "json_formats.MISTRAL",
        (("[TOOL_CALLS]",), ("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")),
    ),
    FormatRow(
        "deepseek",
        "named_formats.DEEPSEEK",
        (("<｜tool▁calls▁begin｜>", "```json"),),
        aliases=("deepseek_v3",),
    ),
    FormatRow("deepseek_v31", "named_formats.DEEPSEEK_V31", (("<｜tool▁calls▁begin｜>",),)),
    FormatRow(
        "granite_20b_fc",
        "json_formats.GRANITE_20B",
        (("<function_call>",),),
        aliases=("granite-20b-fc",),
    ),
    FormatRow("granite", "json_formats.GRANITE", (("<|tool_call|>",),)),
    FormatRow(
        "pythonic",
        "python_calls.PYTHONIC",
        (("<|python_start|>",), ("func_name1(params_name1=",)),
        aliases=("llama4_pythonic",),
    ),
    FormatRow(
        "functionary_v32",
        "named_formats.FUNCTIONARY_V32",
        ((">>>all",),),
        aliases=("functionary_v3",),
    ),
    FormatRow(
        "functionary_v31",
        "named_formats.FUNCTIONARY_V31",
        (("<|start_header_id|>", "<function="),),
        aliases=("functionary_v3_llama_31",),
    ),
    FormatRow(
        "hermes3",
        "json_formats.HERMES3",
        (("<tool_call>",),),
        aliases=("hermes", "granite4", "ernie45"),
    ),
    FormatRow(
        "llama3",
        "json_formats.LLAMA3",
        (("<|python_tag|>",), ("<|start_header_id|>", '"parameters":')),
        aliases=("llama3_json", "llama4_json"),
    ),
    FormatRow("json", "json_formats.PLAIN_JSON", ()),
)
"""The formats in the order in which a template is searched for their marks; marks that other
formats share come last."""

PLAIN_JSON: Final = "json"
"""The format for templates that do not show any."""

TOOL_FORMATS: Final[Formats[ToolFormat]] = Formats(_BY_RANK)
TOOL_FORMAT_ALIASES: Final = TOOL_FORMATS.aliases
"""The names of the formats by other servers' names."""


def detect_tool_format(template: str) -> ToolFormat | None:
    """Returns the tool-call format that a chat template's source shows; the first match wins; None
    = none."""
    name = first_shown_format(_BY_RANK, template)
    return None if name is None else TOOL_FORMATS[name]
