"""Tests of `fastovms/text/reasoning.py`."""

from __future__ import annotations

import pytest

from fastovms.text.output import output_parser
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.scanning import Content, Piece, Reasoning
from tests.text.parsing import parse
from tests.text.tools.checks import cuts

# Thoughts are set apart from the answer that follows them.


THINK = ("deepseek", "deepseek_r1", "granite", "lfm2", "minicpm5", "qwen3")


WHY: list[Piece] = [Reasoning("why"), Content("answer")]


CASES = [
    *[(name, "<think>\nwhy\n</think>\n\nanswer", "", WHY) for name in THINK],
    *[(name, "why</think>answer", "assistant\n<think>\n", WHY) for name in THINK],
    *[(name, "<think>why</think>answer", "<think>", WHY) for name in THINK],
    *[(name, "<think>\n\n</think>\n\nanswer", "", [Content("answer")]) for name in THINK],
    ("qwen3", " answer", "<think>\n\n</think>\n\n", [Content(" answer")]),
    ("qwen3", "why", "<think>", [Reasoning("why")]),
    ("qwen3", "<think>wh</thin", "", [Reasoning("wh")]),
    ("qwen3", "so <think>why</think>", "", [Content("so <think>why</think>")]),
    ("qwen3", "<think>a</think>b<think>c", "", [Reasoning("a"), Content("b<think>c")]),
    ("qwen3", " ", "", [Content(" ")]),
    ("deepseek", "answer", "", [Content("answer")]),
    ("deepseek_r1", "why</think>answer", "", WHY),
    ("deepseek_r1", "why", "", [Reasoning("why")]),
    ("deepseek_r1", "answer", "<｜Assistant｜></think>", [Content("answer")]),
    ("granite", "Here is my thought process: why\nHere is my response: answer", "", WHY),
    ("granite", "Here's my thought process:\nwhy Here's my response:\nanswer", "", WHY),
    ("granite", "Here is the answer", "", [Content("Here is the answer")]),
    ("granite", "<think>why</think>\n<response>answer</response>", "", WHY),
    ("granite", "<think>why</think><response>answer", "", WHY),
    ("granite", "a <response>b</response>", "", [Content("a <response>b</response>")]),
    ("mistral", "[THINK]why[/THINK]answer", "", WHY),
    ("mistral", "why[/THINK]answer", "[/INST][THINK]", WHY),
    ("mistral", "answer", "", [Content("answer")]),
    ("gemma4", "<|channel>thought\nwhy\n<channel|>answer", "", WHY),
    ("gemma4", "why<channel|>answer", "<|turn>model\n<|channel>thought\n", WHY),
    ("gemma4", "<|channel>why<channel|>answer", "", WHY),
    ("gemma4", "<|channel>thou<channel|>answer", "", [Reasoning("thou"), Content("answer")]),
    ("gemma4", "why<channel|> answer", "", [Content("why answer")]),
    ("gemma4", "a\n<|channel>thought\nwhy<channel|>\nb", "",
     [Content("a"), Reasoning("why"), Content("\n\nb")]),
    ("gemma4", "<|channel>thought\n<channel|>", "", []),
    ("gemma4", "answer", "<|channel>thought\n<channel|>", [Content("answer")]),
    ("gptoss", "<|channel|>analysis<|message|>why<|end|><|start|>assistant"
     "<|channel|>final<|message|>answer", "", WHY),
    ("onyx", " to=self<|message|>why<|eom|> to=user<|message|>answer<|eot|>", "", WHY),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "prompt", "pieces"), CASES)
def test_reasoning_sample_gives_its_pieces_however_cut(
    name: str, text: str, prompt: str, pieces: list[Piece]
) -> None:
    for parts in cuts(text):
        parser = output_parser(None, REASONING_FORMATS[name], prompt=prompt, tools=[])
        assert parse(parser, parts) == pieces, parts
        assert not parser.in_reasoning or pieces[-1] == Reasoning(pieces[-1][0])


def test_reasoning_streams_as_it_is_generated() -> None:
    parser = output_parser(None, REASONING_FORMATS["qwen3"], prompt="", tools=[])
    parser.push("<think>\n")
    assert [parser.push(text) for text in ("why", " so", "\n")] == [
        [Reasoning("why")],
        [Reasoning(" so")],
        [],
    ]
    assert parser.in_reasoning
