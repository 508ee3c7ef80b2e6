"""The texts of custom tools are read out of arguments, however these arrive."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLTokenizer

from fastovms.grammar.grammar_compiler import GrammarCompiler
from fastovms.text.custom_input import (
    CustomCallParser,
    InputReader,
    input_arguments,
    input_parameters,
)
from fastovms.text.output_grammar import call_grammar
from fastovms.text.output_parser import output_parser
from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    PlainParser,
    joined,
)
from fastovms.text.tools import TOOL_FORMATS, CallChoice, Tool
from tests.grammar.byte_level import generate
from tests.paths import BYTE_LEVEL_TOKENIZER

QUOTED = r'"[a-z]{2}\n\\[<>]"'
"""An expression of a text that JSON writes with escapes."""


def read(arguments: str, *, complete: bool = True, width: int = 1) -> str:
    reader = InputReader()
    pieces = [arguments[i : i + width] for i in range(0, len(arguments), width)]
    return "".join(map(reader.push, pieces)) + reader.finish(complete=complete)


@given(st.text(), st.booleans(), st.integers(1, 9))
def test_any_text_comes_through(text, is_ascii, width):
    arguments = json.dumps({"input": text}, ensure_ascii=is_ascii)
    assert read(arguments, width=width) == text
    assert read(input_arguments(text), width=width) == text


@pytest.mark.parametrize("width", [1, 2, 100])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\n\\"b\\""}', 'a\n"b"'),
        ('{ "input" : "a" , "more": "b"}', "a"),
        ('{"more": 1, "input": "a"}', "a"),
        ('{"\\u0069nput": "a"}', "a"),
        ('{"input": "\\ud83d\\ude00"}', "\U0001f600"),
        ('{"input": "\\ud83dx\\ude00\\ud83d\\ud83d\\ude00"}', "\ufffdx\ufffd\ufffd\U0001f600"),
        ('{"input": "\\\\ud83d"}', "\\ud83d"),
        ('{"input": "\\ud83d"}', "\ufffd"),
        ('{"more": 1, "input": "\\ud83d"}', "\ufffd"),
        ('{"input": {"a": 1}}', '{"input": {"a": 1}}'),
        ('{"inputs": "a"}', '{"inputs": "a"}'),
        ("{}", ""),
    ],
)
def test_arguments_of_every_kind(arguments, text, width):
    assert read(arguments, width=width) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "a\\nb\\u00', "a\nb"), ('{"inp', ""), ('{"more": 1, "inp', "")],
)
def test_of_a_call_that_is_cut_there_is_what_was_told(arguments, text):
    assert read(arguments, complete=False) == text


def test_texts_are_told_as_they_are_written():
    reader = InputReader()
    assert [reader.push(piece) for piece in ('{"input"', ': "a', "b\\", 'n"', "}")] == [
        "", "a", "b", "\n", "",
    ]  # fmt: skip
    assert reader.finish(complete=True) == ""


class Scripted(PlainParser):
    """Returns the same pieces for any text."""

    in_reasoning = True

    def __init__(self, pieces):
        self.pieces = pieces

    def push(self, text):
        return self.pieces

    finish = PlainParser.finish


def test_only_calls_to_custom_tools_are_changed():
    arguments = '{"input": "a"}'
    pieces = []
    for index, name in enumerate(("write", "add", "write")):
        begin, end = CallBegin(index, name), CallEnd(index, True)
        pieces += [Content("x"), begin, CallArguments(index, arguments), end]
    parser = CustomCallParser(Scripted(pieces), {"write"})
    found = joined([*parser.push("..."), *parser.finish()])
    texts = [piece.text for piece in found if isinstance(piece, CallArguments)]
    assert texts == ["a", arguments, "a"]
    assert [type(piece) for piece in found] == [type(piece) for piece in pieces]
    assert parser.in_reasoning


def test_parameters():
    assert "pattern" not in input_parameters()["properties"]["input"]
    assert input_parameters("a|b")["properties"]["input"]["pattern"] == "^(?:a|b)$"


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokenizer_json = BYTE_LEVEL_TOKENIZER.read_text()
    return GrammarCompiler(tokenizer_json, vocab_size=None, eos_token_ids=[0])


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_every_format_keeps_the_text_to_its_expression(compiler, name):
    tool_format, tool = TOOL_FORMATS[name], Tool("write", input_parameters(QUOTED))
    choice = CallChoice([tool], required=True, parallel=False)
    tokenizer = LLTokenizer(BYTE_LEVEL_TOKENIZER.read_text(), eos_token=0)
    grammar = call_grammar(tool_format, None, choice, prompt="")
    for seed in range(2):
        text = generate(compiler, tokenizer, grammar, seed, use_forced=False)
        new_parser = output_parser(tool_format, None, prompt="", tools=[tool])
        parser = CustomCallParser(new_parser, {"write"})
        found = joined([*parser.push(text), *parser.finish()])
        [written] = [piece.text for piece in found if isinstance(piece, CallArguments)]
        assert re.fullmatch(QUOTED, written), text
