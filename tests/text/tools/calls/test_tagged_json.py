"""Formats of calls in JSON between tags, made up for the test."""

from __future__ import annotations

import pytest

from fastovms.text.output_grammar import call_grammar
from fastovms.text.scanning.output import Content, Piece
from fastovms.text.tools import CallChoice, Tool, ToolFormat
from fastovms.text.tools.calls.tagged_json import tagged_json
from tests.text.tools.checks import call, check_sample
from tests.vocabularies import vocabulary

LIST = tagged_json("list", "<c>", "</c>", also=("<d>",), keys=("tool_name", "parameters"))
EACH = tagged_json("each", "<c>", "</c>", is_list=False, line="\n")
OPEN = tagged_json("open", "<c>", "", is_list=False)
F = '{"name": "f", "arguments": {}}'
G = '{"tool_name": "f", "parameters": {}}'
ONE = call(0, "f", "{}")
TWO = [*ONE, *call(1, "f", "{}")]


@pytest.mark.parametrize(
    ("tool_format", "text", "pieces"),
    [
        (LIST, f"<c>[{G}, {G}]</c>", TWO),
        (LIST, f"<d>{G}</c>", ONE),
        (LIST, f"<c>[{G}] </c", ONE),
        (LIST, "<c>[]</c>", [Content("<c>[]</c>")]),
        (EACH, f"<c>\n{F}\n</c>\n<c>{F}</c>", TWO),
        (EACH, f"<c>{F}and", [*ONE, Content("and")]),
        (OPEN, f"a <c> {F}<c>{F}", [Content("a"), *TWO]),
    ],
)
def test_calls_are_read(tool_format: ToolFormat, text: str, pieces: list[Piece]) -> None:
    check_sample(tool_format, text, pieces, [Tool("f")])


@pytest.mark.parametrize(
    ("tool_format", "right", "wrong"),
    [
        (LIST, [f"<c>[{G}]</c>", f"<c>[{G}, {G}]</c>"],
         [f"<c>{G}</c>", f"<c>[{G}]", f"<c>[{F}]</c>"]),
        (EACH, [f"<c>\n{F}\n</c>", f"<c>\n{F}\n</c>\n<c>\n{F}\n</c>"], [f"<c>{F}</c>"]),
        (OPEN, [f"<c>{F}", f"<c>{F}\n<c>{F}"], [f"<c>{F}</c>", F]),
    ],
)  # fmt: skip
def test_calls_are_written(tool_format: ToolFormat, right: list[str], wrong: list[str]) -> None:
    for specials in ((), tool_format.tags):
        accepts = vocabulary(*specials).accepts
        grammar = call_grammar(tool_format, None, CallChoice([Tool("f")], required=True), prompt="")
        assert all(accepts(grammar, text) for text in right)
        assert not any(accepts(grammar, text) for text in wrong)
