"""What formats share: calls behind a tag, and the tag behind a call."""

from __future__ import annotations

import pytest

from fastovms.grammar_tree import Literal
from fastovms.params import Grammar, GrammarKind
from fastovms.text.parameters import CallChoice, Tool
from fastovms.text.scanning import Content, Incremental, Piece, PieceCollector, Scanner
from fastovms.text.tools import TOOL_FORMATS, detect_tool_format
from fastovms.text.tools.tool_format import read_end, tagged_calls
from tests.text.tools.reading import read
from tests.vocabularies import vocabulary


@pytest.mark.parametrize(
    ("required", "parallel", "between", "right", "wrong"),
    [
        (True, True, ",", ["<c>x", "<c>x,<c>x"], ["", "a<c>x", "<c>x<c>x", "<c>x,"]),
        (True, True, None, ["<c>x"], ["<c>x,<c>x"]),
        (True, False, ",", ["<c>x"], ["<c>x,<c>x", ""]),
        (False, True, ",", ["", "a<c>x", "<c>xa<c>x"], ["<c>y", "<c>"]),
        (False, False, ",", ["a", "a<c>x"], ["<c>x<c>x", "<c>xa"]),
    ],
)
def test_calls_behind_a_tag(
    required: bool, parallel: bool, between: str | None, right: list[str], wrong: list[str]
) -> None:
    choice = CallChoice([Tool("f")], required=required, parallel=parallel)
    tree = tagged_calls(choice, "<c>", Literal("x"), between)
    grammar = Grammar(GrammarKind.CALLS, "", "tools", tree)
    for specials in ((), ("<c>",)):
        accepts = vocabulary(*specials).accepts
        assert {text: accepts(grammar, text) for text in right} == dict.fromkeys(right, True)
        assert not any(accepts(grammar, text) for text in wrong)


@pytest.mark.parametrize(
    ("text", "pieces", "rest"),
    [
        (" </c>a", [], "a"),
        (" a", [Content(" ")], "a"),
        ("</", [], ""),
        ("</d>", [], "</d>"),
    ],
)
def test_the_tag_behind_a_call(text: str, pieces: list[Piece], rest: str) -> None:
    def reader(scan: Scanner, out: PieceCollector) -> Incremental[bool]:
        yield from read_end(scan, out, "</c>")
        return True

    assert read(reader, text) == (True, pieces, rest)


def test_a_template_teaches_a_format_by_all_texts_of_a_mark() -> None:
    assert detect_tool_format("[TOOL_CALLS] [ARGS]") is TOOL_FORMATS["devstral"]
    assert detect_tool_format("[TOOL_CALLS]") is TOOL_FORMATS["mistral"]
