"""Formats found out from the templates that teach them."""

from __future__ import annotations

import pytest

from fastovms.errors import ConfigurationError
from fastovms.server_config import DEMO_MODEL
from fastovms.text.output import check_formats, kept_tags
from fastovms.text.reasoning import REASONING_FORMATS, detect_reasoning_format
from fastovms.text.tools import TOOL_FORMATS, detect_tool_format
from tests.paths import TEMPLATES


def names(source: str) -> tuple[str | None, str | None]:
    tool_format, reasoning_format = detect_tool_format(source), detect_reasoning_format(source)
    return tool_format and tool_format.name, reasoning_format and reasoning_format.name


@pytest.mark.parametrize(
    ("name", "tools", "reasoning"),
    [
        ("qwen3", "hermes3", "qwen3"),
        ("mistral", "mistral", None),
        ("gptoss", "gptoss", "gptoss"),
        ("gemma3", None, None),
        ("deepseek", "deepseek", "deepseek"),
        ("llama3", "llama3", None),
    ],
)
def test_formats_are_detected_from_whole_templates(name, tools, reasoning):
    assert names((TEMPLATES / f"{name}.jinja").read_text()) == (tools, reasoning)


def test_formats_of_the_demo_model_are_detected():
    source = (DEMO_MODEL / "chat_template.jinja").read_text()
    assert names(source) == ("hermes3", "qwen3")


@pytest.mark.parametrize(
    ("marks", "tools", "reasoning"),
    [
        ("", None, None),
        ("<|start|> <|message|> <|eom|> <|eot|>", "onyx", "onyx"),
        ("'<|tool_call>call:' <|channel>thought", "gemma4", "gemma4"),
        ("<|channel>thought", None, "gemma4"),
        ("<tool_call><function=x><parameter=y></tool_call><think>", "qwen3coder", "qwen3"),
        ('<param name="x"><think>', "minicpm5", "minicpm5"),
        ("<tool_call> <arg_key> <arg_value> <think>", "glm45", "qwen3"),
        ("<|tool_call_start|> message.thinking", "lfm2", "lfm2"),
        ("<|tool_call_start|>", "lfm2", None),
        ("keep_past_thinking </think>", "lfm2", "lfm2"),
        ("functools", "phi4", None),
        ("<|tool|><|/tool|>", "phi4", None),
        ("[TOOL_CALLS] [ARGS]", "devstral", None),
        ("[TOOL_CALLS]", "mistral", None),
        ("[AVAILABLE_TOOLS] [/AVAILABLE_TOOLS]", "mistral", None),
        ("<｜tool▁calls▁begin｜>", "deepseek_v31", None),
        ("<|tool_call|>", "granite", None),
        ("<|python_tag|>", "llama3", None),
        ("<|python_start|>", "pythonic", None),
        ("content.split('</think>')", None, "qwen3"),
        ("<|tool_call|> <think></think> <response></response>", "granite", "granite"),
        ("[TOOL_CALLS] [ARGS] [THINK]", "devstral", "mistral"),
        ("'<|tool_list_start|>[' <|tool_list_end|>", "lfm2", None),
        ("<start_function_call>call: <escape>", "functiongemma", None),
        ("<seed:tool_call>\n<function=x>\n<parameter=y> <seed:think>", "seed_oss", "seed_oss"),
        ('<minimax:tool_call> <invoke name="x"> <think>', "minimax_m2", "qwen3"),
        ("]<]minimax[>[ <tool_call> <think>", "minimax_m3", "qwen3"),
        ("<｜DSML｜function_calls> <｜Assistant｜> <think>", "deepseek_v32", "deepseek"),
        ('<｜tool_calls_begin｜> <steptml:invoke name="x">', "step3", None),
        ("<|tool_calls_section_begin|>", "kimi_k2", None),
        ("<|tools_prefix|> <|inner_prefix|>", "apertus", "apertus"),
        ("<|START_ACTION|> <|START_THINKING|>", "command_r7b", "command_r7b"),
        ("Write 'Action:' followed by a json-formatted list", "command_r", None),
        ("<|action_start|><|plugin|>", "internlm", None),
        ("<TOOLCALL> <think>", "nemotron", "qwen3"),
        ("<tool_call>{{ name }}<tool_sep> <arg_key> <arg_value> <think>", "hunyuan_v3", "qwen3"),
        ("<function_calls> <think>", "olmo3", "qwen3"),
        ("<tool_calls> <think> <answer>", "jamba", "hunyuan_a13b"),
        ("<tool_call></tool_call> <tool_calls> [BEGIN FINAL RESPONSE]", "jamba", "apriel"),
        ("<tool_call> <response> </think>", "hermes3", "ernie45"),
        ("make calls in a single JSON array", "xlam", None),
        ("<function_call>", "granite_20b_fc", None),
        ("[func_name1(params_name1=params_value1)] <|start_header_id|>", "pythonic", None),
        (">>>all <|start_header_id|>", "functionary_v32", None),
        ("<|start_header_id|> <|python_tag|> <function=", "functionary_v31", None),
    ],
)
def test_formats_are_detected_from_marks(marks, tools, reasoning):
    assert names(marks) == (tools, reasoning)


def test_kept_tags_are_those_of_both_formats():
    assert kept_tags(None, None) == frozenset()
    tags = kept_tags(TOOL_FORMATS["hermes3"], REASONING_FORMATS["qwen3"])
    assert tags == {"<tool_call>", "</tool_call>", "<think>", "</think>"}


def test_formats_that_do_not_go_together_are_refused():
    gptoss = (TOOL_FORMATS["gptoss"], REASONING_FORMATS["gptoss"])
    check_formats(*gptoss)
    check_formats(gptoss[0], None)
    check_formats(None, gptoss[1])
    check_formats(TOOL_FORMATS["hermes3"], REASONING_FORMATS["deepseek_r1"])
    for pair in (
        (gptoss[0], REASONING_FORMATS["qwen3"]),
        (TOOL_FORMATS["hermes3"], gptoss[1]),
        (TOOL_FORMATS["onyx"], gptoss[1]),
    ):
        with pytest.raises(ConfigurationError, match=pair[1].name):
            check_formats(*pair)
