"""Formats of calls that are elements between tags, made up for the test."""

from __future__ import annotations

import pytest

from fastovms.text.output_grammar import call_grammar
from fastovms.text.scanning.output import Content, Piece
from fastovms.text.tools import CallChoice, Tool
from fastovms.text.tools.calls.tagged_xml import tagged_xml
from fastovms.text.tools.calls.xml_call import XmlForm
from tests.text.tools.checks import call, check_sample
from tests.vocabularies import vocabulary

FORM = XmlForm(
    ('<f name="', '">'), "</f>", ('<p name="', '">'), "</p>", gap="\n",
    kinds=(' string="true"', ' string="false"'),
)  # fmt: skip
EACH = tagged_xml("each", "<c>", "</c>", FORM)
LIST = tagged_xml("list", "<c>", "</c>", FORM, is_list=True)
TOOLS = [Tool("f", {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}})]
F = '<f name="f">\n<p name="s" string="true">1</p>\n<p name="n" string="false">2</p>\n</f>'
ARGUMENTS = '{"s":"1","n":2}'
ONE = call(0, "f", ARGUMENTS)
TWO = [*ONE, *call(1, "f", ARGUMENTS)]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (f"<c>\n{F}\n</c>", ONE),
        (f"<c>{F}{F}</c>", TWO),
        (f"<c>\n{F}\n</c>\n<c>\n{F}\n</c>", TWO),
        (f"a {F} b", [Content("a"), *ONE, Content("  b")]),
        (f"<c>{F}</", ONE),
        ("<c>a</c>", [Content("<c>a</c>")]),
        ('<f name="g"><p name="a" string="true">1</p><p name="b" string="false">1</p></f>',
         call(0, "g", '{"a":"1","b":1}')),
        ('<f name="f"><p name="s">1</p></f>',
         call(0, "f", '{"s":"1"}')),
        ('<f name="f"><p name="s"', call(0, "f", "", complete=False)),
    ],
)  # fmt: skip
def test_calls_are_read(text: str, pieces: list[Piece]) -> None:
    for tool_format in (EACH, LIST):
        check_sample(tool_format, text, pieces, TOOLS)


def test_calls_are_written() -> None:
    choice = CallChoice(TOOLS, required=True)
    each = call_grammar(EACH, None, choice, prompt="")
    listed = call_grammar(LIST, None, choice, prompt="")
    for specials in ((), EACH.tags):
        accepts = vocabulary(*specials).accepts
        assert accepts(each, f"<c>\n{F}\n</c>\n<c>\n{F}\n</c>") is True
        assert accepts(listed, f"<c>\n{F}\n{F}\n</c>") is True
        assert accepts(listed, f"<c>\n{F}\n</c>\n<c>") is False
        assert accepts(each, F) is False
