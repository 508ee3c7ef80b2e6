"""Arguments as elements within elements, in a form made up for the test."""

from __future__ import annotations

import pytest

from fastovms.params import Grammar, GrammarKind
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.output import Piece
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import Tool
from fastovms.text.tools.calls.nested_elements import nested_elements, read_elements
from tests.text.tools.calls.reading import read
from tests.text.tools.checks import call
from tests.vocabularies import vocabulary

TOOL = Tool(
    "f",
    {
        "properties": {
            "s": {"type": "string"},
            "n": {"type": "integer"},
            "l": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["s"],
    },
)


def reader(scan: Scanner, out: PieceCollector) -> Incremental[bool]:
    out.begin("f")
    is_whole = yield from read_elements(scan, out, "#", TOOL, "</f>")
    out.end(complete=is_whole)
    return is_whole


@pytest.mark.parametrize(
    ("text", "is_whole", "pieces", "rest"),
    [
        ("#<s>1#</s>#<n>2#</n>#</f>x", True, call(0, "f", '{"s":"1","n":2}'), "x"),
        ("#<l>#<item>1#</item>#<item>2#</item>#</l>#</f>", True, call(0, "f", '{"l":[1,2]}'), ""),
        ("#<l>[1, 2]#</l>#</f>", True, call(0, "f", '{"l":[1, 2]}'), ""),
        ("#<a>#<b>x#</b>#</a>#</f>", True, call(0, "f", '{"a":{"b":"x"}}'), ""),
        ("#<a>#<item>x#</item>#</a>#</f>", True, call(0, "f", '{"a":["x"]}'), ""),
        ("#</f>", True, call(0, "f", "{}"), ""),
        ("#<s>1#</s>x", False, call(0, "f", '{"s":"1"', complete=False), "x"),
        ("#<n>1", False, call(0, "f", '{"n":', complete=False), ""),
    ],
)
def test_arguments(text: str, is_whole: bool, pieces: list[Piece], rest: str) -> None:
    assert read(reader, text) == (is_whole, pieces, rest)


def test_nesting_has_a_limit() -> None:
    is_whole, _, _ = read(reader, "#<a>" * 50)
    assert not is_whole


def test_arguments_are_written() -> None:
    accepts = vocabulary().accepts
    grammar = Grammar(GrammarKind.CALLS, "", "tools", nested_elements(TOOL, "#"))
    assert accepts(grammar, "#<s>1#</s>#<n>2#</n>#<l>[1]#</l>") is True
    assert accepts(grammar, "#<s>1#</s>") is True
    assert accepts(grammar, "#<n>2#</n>") is False
    assert accepts(grammar, "#<s>1#</s>#<n>x") is False
