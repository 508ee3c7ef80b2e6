"""Calls that are elements, in a form of short tags."""

from __future__ import annotations

import pytest

from fastovms.params import Grammar, GrammarKind
from fastovms.text.scanning.output import Content, Piece
from fastovms.text.scanning.tool import Tool
from fastovms.text.tools.calls.xml_call import XmlForm, read_call, xml_calls
from tests.text.tools.calls.reading import read
from tests.text.tools.checks import call
from tests.vocabularies import vocabulary

FORM = XmlForm(("<f=", ">"), "</f>", ("<p=", ">"), "</p>", has_cdata=True)
TOOLS = [
    Tool(
        "f",
        {
            "properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "o": {}},
            "required": ["s"],
        },
    )
]


@pytest.mark.parametrize(
    ("text", "is_whole", "pieces", "rest"),
    [
        ("f></f>!", True, call(0, "f", "{}"), "!"),
        ("f><p=s>1</p></f>", True, call(0, "f", '{"s":"1"}'), ""),
        ("f>\n<p=n>\n1\n</p>\n</f>", True, call(0, "f", '{"n":1}'), ""),
        ('f><p=o>[1, "</p>"]</p></f>', False, call(0, "f", '{"o":"[1, \\""', complete=False),
         '"]</p></f>'),
        ("f><p=s><![CDATA[<p>\n]]></p></f>", True, call(0, "f", '{"s":"<p>\\n"}'), ""),
        ("f><p=s>a</p><p=s>b</p></f>", True, call(0, "f", '{"s":"a"}'), ""),
        ("unknown><p=x>1</p></f>", True, call(0, "unknown", '{"x":1}'), ""),
        ("f><p=s>a", False, call(0, "f", '{"s":"a', complete=False), ""),
        ("f>text", False, [Content("<c>f>")], "text"),
        ("f\n>", False, [Content("<c>f\n")], ">"),
        ("></f>", False, [Content("<c>>")], "</f>"),
    ],
)  # fmt: skip
def test_one_call(text: str, is_whole: bool, pieces: list[Piece], rest: str) -> None:
    found = read(lambda scan, out: read_call(scan, out, TOOLS, FORM, "<c>"), text)
    assert found == (is_whole, pieces, rest)


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("<f=f><p=s>a</p></f>", True),
        ("<f=f><p=s>a</p><p=n>1</p></f>", True),
        ("<f=f><p=s><![CDATA[\n</p>]]></p></f>", True),
        ("<f=f></f>", False),
        ("<f=f><p=n>1</p><p=s>a</p></f>", False),
        ("<f=f><p=s>a</p><p=n>x</p></f>", False),
        ("<f=g></f>", False),
    ],
)
def test_the_grammar(text: str, is_right: bool) -> None:
    accepts = vocabulary().accepts
    for begun in ("", "<f="):
        tree = xml_calls(TOOLS, FORM, begun=begun)
        grammar = Grammar(GrammarKind.CALLS, "", "tools", tree)
        assert accepts(grammar, text.removeprefix(begun)) is is_right
