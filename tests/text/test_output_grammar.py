"""Reasoning set apart from the answer, and grammars that leave it free."""

from __future__ import annotations

import pytest

from fastovms.params import Grammar, GrammarKind
from fastovms.text.output_grammar import answer_grammar, call_grammar
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.reasoning.reasoning_format import ThoughtTags
from fastovms.text.tools import TOOL_FORMATS, CallChoice, Tool
from tests.vocabularies import vocabulary

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
    "command_r7b": (
        "<|START_THINKING|>why {<|END_THINKING|>",
        '<|START_RESPONSE|>{"a":1}',
        '<|START_RESPONSE|>{"b":1}',
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
    default = ("", '{"a":1}', '{"b":1}')
    thought, right, wrong = ANSWERS.get(name, default)
    if isinstance(reasoning_format.parse, ThoughtTags):
        begin, end = reasoning_format.parse.pairs[0]
        thought = thought or f"{begin}\nwhy {{{end}\n\n"
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
        # A tag within a thought begins the call where one has to come.
        assert accepts(grammar, f"<think>why {call}") is True
        assert accepts(grammar, f"<think>why {call}</think>") is not required
        if specials:  # text that spells a tag is one to a grammar
            assert accepts(grammar, f"<think><tool_call>?</think>{call}") is not required
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
