"""Tests of `fastovms/text/tools/xml_calls.py`."""

from __future__ import annotations

import pytest

from fastovms.params import Grammar, GrammarKind
from fastovms.text.output import call_grammar
from fastovms.text.parameters import Tool
from fastovms.text.scanning import Content, Incremental, Piece, PieceCollector, Scanner
from fastovms.text.tools import CallChoice
from fastovms.text.tools.xml_calls import (
    XmlForm,
    named_call,
    nested_elements,
    read_arguments,
    read_call,
    read_elements,
    tagged_xml,
    xml_calls,
)
from tests.text.tools.checks import call, check_sample
from tests.text.tools.reading import read
from tests.vocabularies import vocabulary

# Calls that are a name and a JSON object with markup between them.


@pytest.mark.parametrize(
    ("name", "text", "is_whole", "pieces", "rest"),
    [
        ("f", ' {"a": 1}</c>', True, call(0, "f", '{"a": 1}'), "</c>"),
        ("f", '{"a": ', False, call(0, "f", '{"a": ', complete=False), ""),
        ("f", " </c>", True, call(0, "f", "{}"), "</c>"),
        ("f", "", False, [], ""),
        ("f", " </", False, [], ""),
        ("f", "a", False, [Content("<c>f")], "a"),
        ("f", "[1]", False, [Content("<c>f")], "[1]"),
        ("", "{}", False, [Content("<c>f")], "{}"),
    ],
)
def test_named_call_arguments_are_read_whole_cut_or_as_content(
    name: str, text: str, is_whole: bool, pieces: list[Piece], rest: str
) -> None:
    found = read(lambda scan, out: read_arguments(scan, out, name, "<c>f", ["</c>"]), text)
    assert found == (is_whole, pieces, rest)


def test_named_call_grammar_accepts_only_calls_of_its_tools() -> None:
    grammar = Grammar(GrammarKind.CALLS, "", "tools", named_call([Tool("f"), Tool("g")], ": "))
    accepts = vocabulary().accepts
    assert [accepts(grammar, text) for text in ("f: {}", "g: {}")] == [True, True]
    assert [accepts(grammar, text) for text in ("h: {}", "f{}", 'f: {"a":1}')] == [False] * 3


# Arguments as elements within elements, in a form made up for the test.


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
    rest = yield from read_elements(scan, out, "#", TOOL, "</f>")
    out.end(complete=rest is None, rest=rest or "")
    return rest is None


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
        (
            "#<s>1#</s>#<n>1#</m>",
            False,
            [*call(0, "f", '{"s":"1"', complete=False), Content("#<n>1#")],
            "</m>",
        ),
        ("#<n>1", False, call(0, "f", "", complete=False), ""),
    ],
)
def test_nested_elements_arguments(
    text: str, is_whole: bool, pieces: list[Piece], rest: str
) -> None:
    assert read(reader, text) == (is_whole, pieces, rest)


@pytest.mark.slow
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


# Calls that are elements, in a form of short tags.


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
def test_xml_call_is_read_whole_cut_or_as_content(
    text: str, is_whole: bool, pieces: list[Piece], rest: str
) -> None:
    found = read(lambda scan, out: read_call(scan, out, FORM, "<c>"), text, TOOLS)
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
def test_xml_call_the_grammar(text: str, is_right: bool) -> None:
    accepts = vocabulary().accepts
    for begun in ("", "<f="):
        tree = xml_calls(TOOLS, FORM, begun=begun)
        grammar = Grammar(GrammarKind.CALLS, "", "tools", tree)
        assert accepts(grammar, text.removeprefix(begun)) is is_right


# Formats of calls that are elements between tags, made up for the test.


TAGGED_XML_FORM = XmlForm(
    ('<f name="', '">'), "</f>", ('<p name="', '">'), "</p>", gap="\n",
    kinds=(' string="true"', ' string="false"'),
)  # fmt: skip
EACH = tagged_xml("each", "<c>", "</c>", TAGGED_XML_FORM)
LIST = tagged_xml("list", "<c>", "</c>", TAGGED_XML_FORM, is_list=True)
TAGGED_XML_TOOLS = [Tool("f", {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}})]
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
        check_sample(tool_format, text, pieces, TAGGED_XML_TOOLS)


def test_calls_are_written() -> None:
    choice = CallChoice(TAGGED_XML_TOOLS, required=True)
    each = call_grammar(EACH, None, choice, prompt="")
    listed = call_grammar(LIST, None, choice, prompt="")
    for specials in ((), EACH.tags):
        accepts = vocabulary(*specials).accepts
        assert accepts(each, f"<c>\n{F}\n</c>\n<c>\n{F}\n</c>") is True
        assert accepts(listed, f"<c>\n{F}\n{F}\n</c>") is True
        assert accepts(listed, f"<c>\n{F}\n</c>\n<c>") is False
        assert accepts(each, F) is False
