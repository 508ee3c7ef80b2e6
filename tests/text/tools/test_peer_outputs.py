"""Answers that other servers' parsers are tried on, as facts: what stands in them of content, of
thoughts and of calls, whole and cut at every position."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from fastovms.text.output import output_parser
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.tools import TOOL_FORMATS, Tool
from tests.text.parsing import parse, said
from tests.text.tools.checks import cuts

TOOLS = [
    Tool("get_weather", {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}})
]
TOKYO = ("get_weather", {"city": "Tokyo"})
JSON_TOKYO = '{"name": "get_weather", "arguments": {"city": "Tokyo"}}'


class Answer(NamedTuple):
    """What a text says, with the format of its calls and that of its thoughts."""

    name: str
    text: str
    calls: tuple[tuple[str, Any], ...] = ()
    content: str = ""
    reasoning: str = ""
    thoughts: str | None = None
    prompt: str = ""


def action(call: str) -> str:
    return f"<|START_ACTION|>\n[\n    {call}\n]\n<|END_ACTION|>"


COHERE_TOKYO = '{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Tokyo"}}'
SEED = "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Tokyo</parameter>\n</function>\n"
MINIMAX = '<invoke name="get_weather">\n<parameter name="city">Tokyo</parameter>\n</invoke>\n'
DSML = "<｜DSML｜function_calls>\n"
DSML_END = "</｜DSML｜function_calls>"
PLUGIN = "<|action_start|><|plugin|>"

ANSWERS = [
    Answer("granite_20b_fc", '<function_call> {"name": 123}',
           content='<function_call> {"name": 123}'),
    Answer("internlm", f'I look. {PLUGIN}{{"name": "get_weather", "parameters": {{"city": "Tokyo"}}'
           "}<|action_end|>", (TOKYO,), "I look."),
    Answer("internlm", f"{PLUGIN}no JSON<|action_end|>", content=f"{PLUGIN}no JSON<|action_end|>"),
    Answer("internlm", '<|action_start|>{"name": "f"}', content='<|action_start|>{"name": "f"}'),
    Answer("jamba", f"I call now. <tool_calls>[{JSON_TOKYO}]</tool_calls>\nThank you!", (TOKYO,),
           "I call now.\nThank you!"),
    Answer("jamba", "<think>\nwhy\n</think>\n<answer>\nIt is 18.\n</answer>", (), "It is 18.",
           "why", "hunyuan_a13b"),
    Answer("jamba", f"<think>why</think><answer><tool_calls>[{JSON_TOKYO}]</tool_calls>\n</answer>",
           (TOKYO,), "", "why", "hunyuan_a13b"),
    Answer("jamba", "Here are my reasoning steps:\nwhy\n[BEGIN FINAL RESPONSE]\nIt is 18.\n"
           "[END FINAL RESPONSE]", (), "It is 18.", "why", "apriel"),
    Answer("jamba", f"Here are my reasoning steps:\nwhy\n<tool_calls>[{JSON_TOKYO}]</tool_calls>",
           (TOKYO,), "", "why", "apriel"),
    Answer("nemotron", f"why</think>\n\n<TOOLCALL>[{JSON_TOKYO}]</TOOLCALL>", (TOKYO,), "", "why",
           "qwen3", "<SPECIAL_11>Assistant\n<think>\n\n"),
    Answer("hermes3", f"<think>why</think>\n\n<response>\nIt is 18.\n</response>\n<tool_call>\n"
           f"{JSON_TOKYO}\n</tool_call>\n", (TOKYO,), "It is 18.", "why", "ernie45"),
    Answer("command_r7b", f"<|START_THINKING|> I call.<|END_THINKING|>{action(COHERE_TOKYO)}",
           (TOKYO,), "", "I call.", "command_r7b"),
    Answer("command_r7b", "<|START_THINKING|>why<|END_THINKING|>\n<|START_RESPONSE|>It is 18."
           "<|END_RESPONSE|>", (), "It is 18.", "why", "command_r7b"),
    Answer("command_r7b", "<|START_RESPONSE|>It is 18.<|END_RESPONSE|>", (), "It is 18.", "",
           "command_r7b"),
    Answer("seed_oss", f"<seed:think>why</seed:think>I look.\n{SEED}</seed:tool_call>", (TOKYO,),
           "I look.", "why", "seed_oss"),
    Answer("seed_oss", f"why</seed:think>\n{SEED}</seed:tool_call>", (TOKYO,), "", "why",
           "seed_oss", "<seed:bos>assistant\n<seed:think>"),
    Answer("minimax_m2", f"why\n</think>\n\n<minimax:tool_call>\n{MINIMAX}{MINIMAX}"
           "</minimax:tool_call>", (TOKYO, TOKYO), "", "why", "qwen3", "]~b]ai\n<think>\n"),
    Answer("deepseek_v32", f'{DSML}<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter '
           f'name="days" string="true">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n{DSML_END}',
           (("get_weather", {"days": 3}),)),
    Answer("apertus", "<|inner_prefix|>why<|inner_suffix|>"
           '<|tools_prefix|>[{"get_weather": {"city": "Tokyo"}}]<|tools_suffix|>', (TOKYO,), "",
           "why", "apertus"),
    Answer("qwen3coder", "why\n<tool_call>\n<function=get_weather>\n<parameter=city>\nTokyo\n"
           "</parameter>\n</function>\n</tool_call>", (TOKYO,), "", "why", "qwen3",
           "<|im_start|>assistant\n<think>\n"),
    Answer("gemma4", "<|channel>thought\nwhy<channel|>I look.<|tool_call>call:get_weather{city:"
           '<|"|>Tokyo<|"|>}<tool_call|>', (TOKYO,), "I look.", "why", "gemma4"),
    Answer("gemma4", '<|channel>why <|tool_call>call:get_weather{city:<|"|>Tokyo<|"|>}<tool_call|>',
           (TOKYO,), "", "why", "gemma4"),
]  # fmt: skip


def read(answer: Answer, parts: list[str]) -> Answer:
    thoughts = REASONING_FORMATS[answer.thoughts] if answer.thoughts else None
    tool_format = TOOL_FORMATS[answer.name]
    parser = output_parser(tool_format, thoughts, prompt=answer.prompt, tools=TOOLS)
    content, reasoning, calls, completes = said(parse(parser, parts))
    assert all(completes)
    found = tuple((name, json.loads(arguments)) for name, arguments in calls)
    return answer._replace(calls=found, content=content, reasoning=reasoning)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: f"{answer.name}: {answer.text}")
def test_peer_answer_gives_its_content_and_calls_however_cut(answer: Answer) -> None:
    for parts in cuts(answer.text):
        found = read(answer, parts)
        content = "\n".join(line.strip() for line in found.content.splitlines() if line.strip())
        assert found._replace(content=content) == answer, parts
