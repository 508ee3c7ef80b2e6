"""What holds for every format, tried on texts put together from its own markup."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastovms.text.headed_messages import HeadedMessages
from fastovms.text.output import call_grammar, output_parser
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.scanning import CallArguments, CallBegin, CallEnd, Content
from fastovms.text.tools import TOOL_FORMATS, CallChoice, ToolFormat
from tests.text.parsing import parse
from tests.text.tools.checks import SHOP, check_walks, follows
from tests.vocabularies import vocabulary

# Pieces of calls in all formats.
FRAGMENTS = [
    '{"name": "search", "arguments": {"query": "te', '"name": "now"', '"parameters"', "{", "}",
    "[", "]", ", ", ": ", '"', "'", "\\", "\\u00", "1", "-", "true", "None", "\n", " ", "x", "ü",
    "search(", "query=", "now()", ")", "<function=search>", "<parameter=query>", "</parameter>",
    "</function>", "search\n<arg_key>query</arg_key>\n<arg_value>", "<arg_key>limit</arg_key>",
    '<function name="search">', '<param name="query">', "</param>", "<![CDATA[",
    "]]>", "functools[", '<atem:invoke name="search">', '<atem:parameter name="query">',
    "</atem:parameter>", "</atem:invoke>", "<atem:function_calls>", "</atem:function_calls>",
    "call:search{", "query:", " to=functions.search", " to=self", "commentary", "analysis", "final",
    "function", "search", "\n```json\n", "\n```", "<think>", "</think>",
]  # fmt: skip
CLOSERS = [
    '"', "}", "]", "}]", "}\n```", "</parameter>", "</param>", "</function>", "]]>",
    "]<]minimax[>[</query>", "</arg_value>", "</atem:parameter>", "</steptml:parameter>",
    "</｜DSML｜parameter>", '<|"|>',
]  # fmt: skip
ENDS = ["/｜DSML｜function_calls>", "/tool_call>"]
"""Tags behind calls, from where they differ from those that begin the next."""

ANY_FORMAT = pytest.mark.parametrize("tool_format", TOOL_FORMATS.values(), ids=lambda f: f.name)


@st.composite
def cut_texts(draw: st.DrawFn, tags: tuple[str, ...]) -> list[str]:
    """A text in pieces."""
    fragments = draw(st.lists(st.sampled_from([*FRAGMENTS, *tags, *tags, *tags]), max_size=14))
    text = "".join(fragments)
    positions = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)) | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(positions)]


@pytest.mark.slow
@ANY_FORMAT
@settings(max_examples=40)
@given(data=st.data())
def test_any_text_gives_the_same_pieces_however_cut(
    tool_format: ToolFormat, data: st.DataObject
) -> None:
    texts = data.draw(cut_texts(tool_format.tags))
    text = "".join(texts)
    reasoning = data.draw(st.sampled_from([None, REASONING_FORMATS.get(tool_format.name)]))

    def pieces(texts):
        return parse(output_parser(tool_format, reasoning, prompt="", tools=SHOP), texts)

    whole = pieces([text])
    assert pieces(texts) == whole
    assert pieces(text) == whole
    begun = [piece.call_index for piece in whole if isinstance(piece, CallBegin)]
    ended = [piece.call_index for piece in whole if isinstance(piece, CallEnd)]
    assert begun == ended == list(range(len(begun)))
    for told, end in itertools.pairwise(whole):
        if isinstance(told, CallArguments) and isinstance(end, CallEnd) and end.complete:
            assert isinstance(json.loads(told.text), dict)
    has_messages = isinstance(tool_format.parse, HeadedMessages)
    is_plain = not begun and reasoning is None and not has_messages
    is_plain = is_plain and tool_format.name != "functionary_v32"  # its text has a sign
    if is_plain:
        # Markup that the end cuts is dropped.
        told = "".join(piece.text for piece in whole if isinstance(piece, Content))
        assert text.startswith(told)


@pytest.mark.slow
@ANY_FORMAT
def test_required_calls_follow_their_schemas(tool_format: ToolFormat) -> None:
    check_walks(tool_format, SHOP, [*CLOSERS, *ENDS, *tool_format.tags])


@pytest.mark.slow
@ANY_FORMAT
def test_calls_that_the_model_chooses_follow_their_schemas(tool_format: ToolFormat) -> None:
    schemas = {tool.name: tool.parameters for tool in SHOP}
    begin = {
        "apertus": '<|tools_prefix|>[{"now": ',
        "deepseek_v32": "<｜DSML｜function_calls>",
        "functionary_v31": "<function=now>",
        "functionary_v32": "now\n",
        "gptoss": "<|channel|>commentary to=functions.",
        "json": '{"name": "now", "arguments": ',
        "minimax_m3": "]<]minimax[>[<tool_call>",
        "llama3": '{"name": "now", "parameters": ',
        "onyx": ' to=now<|message|><atem:function_calls>\n<atem:invoke name="now">',
        "phi4": "functools[",
        "pythonic": "[now(",
        "xlam": '[{"name": "now", "arguments": ',
    }.get(tool_format.name) or tool_format.tags[0]
    hints = [*CLOSERS, *[begin] * len(CLOSERS)]
    num_calls = 0
    for specials in ((), tool_format.tags):
        for parallel in (False, True):
            choice = CallChoice(SHOP, parallel=parallel)
            grammar = call_grammar(tool_format, None, choice, prompt="")
            accepts = vocabulary(*specials).accepts
            sign = "all\n" if tool_format.name == "functionary_v32" else ""
            assert accepts(grammar, f"{sign}Plain text, {{ and [1] and <b>.") is True
            for seed in range(8):
                text = vocabulary(*specials).walk(grammar, hints, seed)
                pieces = parse(output_parser(tool_format, None, prompt="", tools=SHOP), [text])
                names = [piece.name for piece in pieces if isinstance(piece, CallBegin)]
                told = [piece.text for piece in pieces if isinstance(piece, CallArguments)]
                assert all(piece.complete for piece in pieces if isinstance(piece, CallEnd)), text
                for name, arguments in zip(names, told, strict=True):
                    assert follows(json.loads(arguments), schemas[name]), text
                num_calls += len(names)
    assert num_calls
