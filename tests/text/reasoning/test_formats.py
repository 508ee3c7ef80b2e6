"""Reasoning set apart from the answer, and grammars that leave it free."""

from __future__ import annotations

import pytest

from fastovms.params import Grammar, GrammarKind
from fastovms.text.output_grammar import answer_grammar, call_grammar
from fastovms.text.output_parser import opens_reasoning, output_parser
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.scanning.output import Content, Piece, Reasoning
from fastovms.text.tools import TOOL_FORMATS, CallChoice, Tool
from tests.text.parsing import parse
from tests.text.tools.checks import cuts
from tests.vocabularies import vocabulary

THINK = ("deepseek", "deepseek_r1", "granite", "lfm2", "minicpm5", "qwen3")
WHY: list[Piece] = [Reasoning("why"), Content("answer")]
CASES = [
    *[(name, "<think>\nwhy\n</think>\n\nanswer", "", WHY) for name in THINK],
    *[(name, "why</think>answer", "assistant\n<think>\n", WHY) for name in THINK],
    *[(name, "<think>why</think>answer", "<think>", WHY) for name in THINK],
    *[(name, "<think>\n\n</think>\n\nanswer", "", [Content("answer")]) for name in THINK],
    ("qwen3", " answer", "<think>\n\n</think>\n\n", [Content(" answer")]),
    ("qwen3", "why", "<think>", [Reasoning("why")]),
    ("qwen3", "<think>wh</thin", "", [Reasoning("wh</thin")]),
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
    ("gemma4", "answer", "<|channel>thought\n<channel|>", [Content("answer")]),
    ("gptoss", "<|channel|>analysis<|message|>why<|end|><|start|>assistant"
     "<|channel|>final<|message|>answer", "", WHY),
    ("onyx", " to=self<|message|>why<|eom|> to=user<|message|>answer<|eot|>", "", WHY),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "prompt", "pieces"), CASES)
def test_samples(name: str, text: str, prompt: str, pieces: list[Piece]) -> None:
    for parts in cuts(text):
        parser = output_parser(None, REASONING_FORMATS[name], prompt=prompt, tools=[])
        assert parse(parser, parts) == pieces, parts
        assert not parser.in_reasoning or pieces[-1] == Reasoning(pieces[-1][0])


def test_thoughts_are_told_as_they_are_generated() -> None:
    parser = output_parser(None, REASONING_FORMATS["qwen3"], prompt="", tools=[])
    parser.push("<think>\n")
    assert [parser.push(text) for text in ("why", " so", "\n")] == [
        [Reasoning("why")],
        [Reasoning(" so")],
        [],
    ]
    assert parser.in_reasoning


@pytest.mark.parametrize(
    ("name", "prompt", "is_inside"),
    [
        ("qwen3", "<|im_start|>assistant\n<think>\n", True),
        ("qwen3", "<think> is a tag", False),
        ("deepseek_r1", "", True),
        ("deepseek_r1", "<think>\n</think>\n", False),
        ("gptoss", "<|start|>assistant", False),
        ("onyx", "<|start|>assistant to=self<|message|>", True),
    ],
)
def test_whether_the_prompt_has_opened_reasoning(name: str, prompt: str, is_inside: bool) -> None:
    assert opens_reasoning(REASONING_FORMATS[name], prompt) is is_inside


ANSWERS = {
    "gptoss": (
        "<|channel|>analysis<|message|>why {<|end|><|start|>assistant",
        '<|channel|>final<|message|>{"a":1}',
        '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"a":1}',
    ),
    "onyx": (
        " to=self<|message|>why {<|eom|><|start|>assistant",
        ' to=user<|message|>{"a":1}',
        ' to=user<|message|>{"b":1}',
    ),
    "mistral": ("[THINK]why {[/THINK]", '{"a":1}', '{"b":1}'),
    "gemma4": ("<|channel>thought\nwhy {<channel|>", '{"a":1}', '{"b":1}'),
    "granite": (
        "Here is my thought process: why {Here is my response:",
        '{"a":1}',
        '{"b":1}',
    ),
}
SCHEMA = '{"properties": {"a": {"type": "integer"}}, "additionalProperties": false}'


@pytest.mark.parametrize("name", REASONING_FORMATS)
def test_an_answer_is_constrained_and_a_thought_is_not(name: str) -> None:
    reasoning_format = REASONING_FORMATS[name]
    default = ("<think>\nwhy {</think>\n\n", '{"a":1}', '{"b":1}')
    thought, right, wrong = ANSWERS.get(name, default)
    grammar = Grammar(GrammarKind.JSON_SCHEMA, SCHEMA)
    for specials in ((), reasoning_format.tags):
        framed = answer_grammar(grammar, reasoning_format, prompt="</think>")
        accepts = vocabulary(*specials).accepts
        assert accepts(framed, right) is True
        assert accepts(framed, thought + right) is True
        assert accepts(framed, thought + wrong) is False
        assert accepts(framed, thought) is None


def test_a_prompt_that_has_begun_a_thought() -> None:
    reasoning_format = REASONING_FORMATS["qwen3"]
    grammar = Grammar(GrammarKind.JSON_SCHEMA, SCHEMA)
    framed = answer_grammar(grammar, reasoning_format, prompt="<think>\n")
    accepts = vocabulary("<think>", "</think>").accepts
    assert accepts(framed, 'why</think>\n{"a":1}') is True
    assert accepts(framed, 'why</think>\n\n{"a":1}') is True
    assert accepts(framed, "why</think>\n\n\n") is False
    assert accepts(framed, '{"a":1}') is None


@pytest.mark.parametrize("required", [True, False])
def test_calls_after_a_thought(required: bool) -> None:
    hermes, qwen = TOOL_FORMATS["hermes3"], REASONING_FORMATS["qwen3"]
    choice = CallChoice([Tool("now")], required=required)
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    grammar = call_grammar(hermes, qwen, choice, prompt="")
    for specials in ((), (*hermes.tags, *qwen.tags)):
        accepts = vocabulary(*specials).accepts
        assert accepts(grammar, call) is True
        assert accepts(grammar, f"<think>\nwhy {{\n</think>\n\n{call}") is True
        if specials:  # text that spells a tag is one to a grammar
            assert accepts(grammar, f"<think>\n<tool_call>?\n</think>\n\n{call}") is True
        assert accepts(grammar, "<think>why</think><tool_call>?") is False
        assert accepts(grammar, "<think>why</think>text") is not required


def test_an_answer_or_a_call() -> None:
    choice = CallChoice([Tool("now")])
    grammar = Grammar(GrammarKind.JSON_SCHEMA, SCHEMA)
    either = answer_grammar(grammar, None, prompt="", calls=(TOOL_FORMATS["hermes3"], choice))
    accepts = vocabulary().accepts
    assert accepts(either, '{"a":1}') is True
    assert accepts(either, '<tool_call>{"name": "now", "arguments": {}}</tool_call>') is True
    assert accepts(either, "text") is False
    assert answer_grammar(grammar, None, prompt="") is grammar
