"""Tests of `fastovms/text/output.py`."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLTokenizer

from fastovms.grammar.compiler import GrammarCompiler
from fastovms.params import Grammar, GrammarKind
from fastovms.text.detokenizer import TableDetokenizer, WindowDetokenizer
from fastovms.text.output import (
    CustomCallParser,
    InputReader,
    TextStream,
    answer_grammar,
    call_grammar,
    input_arguments,
    input_parameters,
    opens_reasoning,
    output_parser,
)
from fastovms.text.reasoning import REASONING_FORMATS, ReasoningMarkup
from fastovms.text.scanning import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    PlainParser,
    Reasoning,
    joined,
)
from fastovms.text.tools import TOOL_FORMATS, CallChoice, Tool
from tests.grammar.byte_level import generate
from tests.paths import BYTE_LEVEL_TOKENIZER
from tests.text.parsing import parse
from tests.vocabularies import vocabulary

# The texts of custom tools are read out of arguments, however these arrive.


QUOTED = r'"[a-z]{2}\n\\[<>]"'
"""An expression of a text that JSON writes with escapes."""


def read(arguments: str, *, complete: bool = True, width: int = 1) -> str:
    reader = InputReader()
    pieces = [arguments[i : i + width] for i in range(0, len(arguments), width)]
    return "".join(map(reader.push, pieces)) + reader.finish(complete=complete)


@given(st.text(), st.booleans(), st.integers(1, 9))
def test_input_of_a_custom_tool_is_any_text(text, is_ascii, width):
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
def test_input_is_read_from_arguments_of_any_form(arguments, text, width):
    assert read(arguments, width=width) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "a\\nb\\u00', "a\nb"), ('{"inp', ""), ('{"more": 1, "inp', "")],
)
def test_incomplete_custom_call_keeps_the_input_so_far(arguments, text):
    assert read(arguments, complete=False) == text


def test_input_of_a_custom_call_streams_piece_by_piece():
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


def test_calls_to_custom_tools_have_their_input_as_arguments():
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


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokenizer_json = BYTE_LEVEL_TOKENIZER.read_text()
    return GrammarCompiler(tokenizer_json, vocab_size=None, eos_token_ids=[0])


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_input_follows_its_expression_in_every_format(compiler, name):
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


# Reasoning set apart from the answer, and grammars that leave it free.


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
def test_answer_is_constrained_and_reasoning_is_not(name: str) -> None:
    reasoning_format = REASONING_FORMATS[name]
    default = ("", '{"a":1}', '{"b":1}')
    thought, right, wrong = ANSWERS.get(name, default)
    if isinstance(reasoning_format.parse, ReasoningMarkup):
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


def test_answer_after_reasoning_begun_by_the_prompt_is_constrained() -> None:
    reasoning_format = REASONING_FORMATS["qwen3"]
    grammar = Grammar(GrammarKind.JSON_SCHEMA, SCHEMA)
    framed = answer_grammar(grammar, reasoning_format, prompt="<think>\n")
    accepts = vocabulary("<think>", "</think>").accepts
    assert accepts(framed, 'why</think>\n{"a":1}') is True
    assert accepts(framed, 'why</think>\n\n{"a":1}') is True
    assert accepts(framed, "why</think>\n\n\n") is False
    assert accepts(framed, '{"a":1}') is None


@pytest.mark.parametrize("required", [True, False])
def test_required_call_may_follow_reasoning(required: bool) -> None:
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


def test_answer_or_call_is_accepted() -> None:
    choice = CallChoice([Tool("now")])
    grammar = Grammar(GrammarKind.JSON_SCHEMA, SCHEMA)
    either = answer_grammar(grammar, None, prompt="", calls=(TOOL_FORMATS["hermes3"], choice))
    accepts = vocabulary().accepts
    assert accepts(either, '{"a":1}') is True
    assert accepts(either, '<tool_call>{"name": "now", "arguments": {}}</tool_call>') is True
    assert accepts(either, "text") is False
    assert answer_grammar(grammar, None, prompt="") is grammar


# Reasoning and calls in one answer.


HERMES3 = TOOL_FORMATS["hermes3"]
QWEN3 = REASONING_FORMATS["qwen3"]
TOOLS = [Tool("add")]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ADD = [CallBegin(0, "add"), CallArguments(0, '{"a": 1}'), CallEnd(0, True)]

SECOND = [CallBegin(1, "add"), CallArguments(1, '{"a": 1}'), CallEnd(1, True)]


@pytest.mark.parametrize(
    ("text", "prompt", "pieces"),
    [
        ("hello", "", [Content("hello")]),
        ("<think>\nwhy\n</think>\n\nhello", "", [Reasoning("why"), Content("hello")]),
        ("why</think>hello", "assistant\n<think>\n", [Reasoning("why"), Content("hello")]),
        ("why", "assistant\n<think>\n", [Reasoning("why")]),
        (f"<think>why\n{CALL}", "", [Reasoning("why"), *ADD]),
        (f"why\n{CALL}\n</think>\nok", "<think>\n", [Reasoning("why"), *ADD, Content("ok")]),
        (f"<think>{CALL}</think>{CALL}", "", [*ADD, *SECOND]),
        (
            f"<think>a <tool_call>b</tool_call> {{c</think>{CALL}",
            "",
            [Reasoning("a <tool_call>b</tool_call> {c"), *ADD],
        ),
        ("<think>a <tool_call></think>b", "", [Reasoning("a <tool_call>"), Content("b")]),
        (f"<think>\n\n</think>\n\nok\n{CALL}\n", "", [Content("ok"), *ADD]),
    ],
)
def test_reasoning_and_calls_are_separated_from_content(text, prompt, pieces):
    for texts in ([text], text):
        parser = output_parser(HERMES3, QWEN3, prompt=prompt, tools=TOOLS)
        assert parse(parser, texts) == pieces


def test_calls_without_tools_are_content():
    parser = output_parser(HERMES3, QWEN3, prompt="", tools=[])
    assert parse(parser, ["<think>why</think>", CALL]) == [Reasoning("why"), Content(CALL)]
    assert parse(output_parser(None, None, prompt="", tools=TOOLS), CALL) == [Content(CALL)]


def test_in_reasoning_follows_the_text():
    parser = output_parser(None, QWEN3, prompt="", tools=[])
    states = []
    for text in ("<think>", "why", "</think>", "hello"):
        parser.push(text)
        states.append(parser.in_reasoning)
    assert states == [True, True, False, False]


def test_arguments_stream_character_by_character():
    parser = output_parser(HERMES3, None, prompt="", tools=TOOLS)
    parser.push('<tool_call>{"name": "add", "arguments": {"text": "')
    assert [parser.push(char) for char in "ab"] == [
        [CallArguments(0, "a")],
        [CallArguments(0, "b")],
    ]


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
def test_prompt_that_opens_reasoning_is_recognized(name: str, prompt: str, is_inside: bool) -> None:
    assert opens_reasoning(REASONING_FORMATS[name], prompt) is is_inside


# Token id = byte.
BYTES = [bytes([byte]) for byte in range(256)]


def stream(*stop: str, include_stop: bool = False, min_tokens: int = 0) -> TextStream:
    detokenizer = TableDetokenizer(BYTES, strip_leading_space=False)
    return TextStream(detokenizer, stop, include_stop=include_stop, min_tokens=min_tokens)


def test_text_without_stop_strings_passes() -> None:
    text = stream()
    assert text.push(b"ab\xe2\x82")[:3] == ("ab", None, 4)
    assert text.push(b"\xac")[:3] == ("€", None, 5)
    assert text.push(b"\xe2")[:3] == ("", None, 6)
    assert text.flush()[:3] == ("\N{REPLACEMENT CHARACTER}", None, 6)


@pytest.mark.parametrize(("include_stop", "shown"), [(False, "ab"), (True, "abEND")])
def test_tokens_after_the_stop_string_are_not_counted(include_stop: bool, shown: str) -> None:
    text = stream("END", include_stop=include_stop)
    first = text.push(b"abE")
    second = text.push(b"NDcd")
    assert (first.stop, first.num_tokens) == (None, 3)
    assert (second.stop, second.num_tokens) == ("END", 5)
    assert first.text + second.text == shown
    assert text.push(b"xyz")[:3] == ("", "END", 5)
    assert text.flush()[:3] == ("", "END", 5)


@pytest.mark.parametrize(
    ("min_tokens", "shown", "num_tokens"),
    [(0, "a", 3), (2, "a", 3), (3, "a--b", 6), (5, "a--b", 6), (6, "a--b--c", None)],
)
def test_stop_string_within_min_tokens_does_not_end_the_text(
    min_tokens: int, shown: str, num_tokens: int | None
) -> None:
    text = stream("--", min_tokens=min_tokens)
    delta, last = text.push(b"a--b--c"), text.flush()
    assert delta.text + last.text == shown
    assert (last.stop, last.num_tokens) == (("--", num_tokens) if num_tokens else (None, 7))


def test_stop_string_is_found_in_characters_that_span_tokens() -> None:
    text = stream("€")
    assert text.push(b"a\xe2\x82")[:3] == ("a", None, 3)
    assert text.push(b"\xac!")[:3] == ("", "€", 4)


def test_flush_may_complete_a_stop_string() -> None:
    text = stream("\N{REPLACEMENT CHARACTER}")
    assert text.push(b"a\xe2")[:3] == ("a", None, 2)
    assert text.flush()[:3] == ("", "\N{REPLACEMENT CHARACTER}", 2)


def parsed_stream(*stop: str, include_stop: bool = False, min_tokens: int = 0) -> TextStream:
    """Returns the stream of a chat's answer, whose parser holds text back."""
    detokenizer = TableDetokenizer(BYTES, strip_leading_space=False)
    parser = output_parser(HERMES3, QWEN3, prompt="", tools=TOOLS)
    return TextStream(
        detokenizer, stop, include_stop=include_stop, min_tokens=min_tokens, parser=parser
    )


@pytest.mark.parametrize(
    ("text", "stop", "min_tokens", "content", "num_tokens"),
    [
        ("ab foo bar", "foo ", 0, "ab ", 7),
        ("ab foo \n\n  bar", "foo \n", 0, "ab ", 8),
        ("ab foo", "b ", 0, "a", 3),
        ("ab ", "b ", 0, "a", 3),
        ("ab", "b ", 0, "ab", None),
        ("a <tool box", "a <", 0, "", 3),
        ("a </thing>", "</th", 0, "a ", 6),
        ("a {1: 2}", "{", 0, "a ", 3),
        ("ä ü ö", "ü ", 0, "ä ", 6),
        ("ä\u3000ü", "\u3000", 0, "ä", 5),
        ("<think>why </think>\nok then", "ok ", 0, "", 23),
        ("<think>ok </think>\nok\tthen", "ok\t", 0, "", 22),
        ("foo bar", "foo ", 3, "", 4),
        ("foo bar", "foo ", 4, "foo bar", None),
        ("foo foo bar", "foo ", 4, "foo ", 8),
        ("foo  bar", " ", 4, "foo ", 5),
        (f"foo {CALL}", "foo ", 0, "foo", None),
        (f"foo {CALL} a b", "a ", 0, "foo  ", len(f"foo {CALL} a ")),
    ],
)
def test_tokens_count_to_the_one_that_completed_a_stop_string(
    text: str, stop: str, min_tokens: int, content: str, num_tokens: int | None
) -> None:
    """However much of the text the parser holds back, and however many tokens come at once."""
    data = text.encode()
    for width in (1, 3, len(data)):
        answer = parsed_stream("absent", stop, min_tokens=min_tokens)
        deltas = [answer.push(data[at : at + width]) for at in range(0, len(data), width)]
        if deltas[-1].stop is None:
            deltas.append(answer.flush(is_cut=False))
        found = "".join(p.text for d in deltas for p in d.pieces if isinstance(p, Content))
        expected = (content, None, len(data)) if num_tokens is None else (content, stop, num_tokens)
        assert (found, *deltas[-1][1:3]) == expected


@pytest.mark.slow
@given(
    st.text(" a\n<{ä", max_size=12),
    st.lists(st.text(" a\n<{ä", min_size=1, max_size=4), max_size=3),
    st.integers(0, 8),
    st.integers(1, 4),
    st.booleans(),
)
def test_stop_string_in_parsed_text_is_counted_as_in_plain_text(
    text: str, stop: list[str], min_tokens: int, width: int, include_stop: bool
) -> None:
    data = f"{text}.".encode()
    outcomes = []
    for make in (stream, parsed_stream):
        answer = make(*stop, include_stop=include_stop, min_tokens=min_tokens)
        deltas = [answer.push(data[at : at + width]) for at in range(0, len(data), width)]
        if deltas[-1].stop is None:
            deltas.append(answer.flush(is_cut=False))
        texts = [delta.text for delta in deltas]
        if make is parsed_stream:
            texts = [p.text for d in deltas for p in d.pieces if isinstance(p, Content)]
        outcomes.append(("".join(texts), *deltas[-1][1:3]))
    assert outcomes[0] == outcomes[1]


def test_window_detokenizer_counts_tokens_up_to_the_stop_string() -> None:
    """A `WindowDetokenizer` holds the last characters back."""
    for stop, shown, num_tokens in (("cd", "ab", 4), ("d", "abc", 4), ("h", "abcdefg", 8)):
        detokenizer = WindowDetokenizer(lambda token_ids: bytes(token_ids).decode())
        text = TextStream(detokenizer, [stop])
        deltas = [text.push([token_id]) for token_id in b"abcdefgh"]
        deltas.append(text.flush())
        assert "".join(delta.text for delta in deltas) == shown
        assert deltas[-1][1:3] == (stop, num_tokens)
