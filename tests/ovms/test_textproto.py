from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.parts.ovms.textproto import MAX_NESTING, Message, SyntaxFault, parse, quote


def plain(message: Message) -> list[tuple[str, object]]:
    return [
        (field.name, plain(field.value) if isinstance(field.value, Message) else field.value)
        for field in message.fields
    ]


def nested(depth: int) -> list[tuple[str, object]]:
    return [("a", nested(depth - 1))] if depth else []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a: 1, b: 2; c: 3 # end", [("a", 1), ("b", 2), ("c", 3)]),
        ("a:-1 b: - 2 c: 0x1F d: 017 e: 1.5 f: 2e3 g: .5f h: 3f", [
            ("a", -1), ("b", -2), ("c", 31), ("d", 15), ("e", 1.5), ("f", 2000.0), ("g", 0.5),
            ("h", 3.0)]),
        ("a: true b: LM_CB c: -inf", [("a", "true"), ("b", "LM_CB"), ("c", "-inf")]),
        ("""a: "x" b: 'y"z' c: "one " 'two'""", [("a", "x"), ("b", 'y"z'), ("c", "one two")]),
        (r'''a: "\n\t\\\"\'\x41\101\u00e9\U0001F600" ''', [("a", "\n\t\\\"'AAé😀")]),
        (r'a: "\xc3\xa9"', [("a", "é")]),
        ('a: "é # no comment"', [("a", "é # no comment")]),
        ("a { b: 1 }", [("a", [("b", 1)])]),
        ("a: { b < c: 1 > }", [("a", [("b", [("c", 1)])])]),
        ("a { } a {}", [("a", []), ("a", [])]),
        ("a {" * MAX_NESTING + "}" * MAX_NESTING, nested(MAX_NESTING)),
        ("a: [1, 2] b [{c: 1}, {}] d: []", [
            ("a", 1), ("a", 2), ("b", [("c", 1)]), ("b", [])]),
        ("[a.b.C]: 1 [ type.x.com / a.B ] { }", [("[a.b.C]", 1), ("[type.x.com/a.B]", [])]),
    ],
)  # fmt: skip
def test_textproto_is_parsed_into_names_and_values(text, expected):
    assert plain(parse(text)) == expected


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a", 1, "expected : or { after a, not the end"),
        ("a 1", 1, "expected : or { after a, not 1"),
        ("\n\na: ", 3, "expected a value, not the end"),
        ("a: 1\nb: }", 2, "expected a value, not }"),
        ("a {\n b: 1\n", 3, "expected the name of a field, not the end"),
        ("a { b: 1 >", 1, "expected the name of a field, not >"),
        ("1: 2", 1, "expected the name of a field, not 1"),
        ("a: 1\nb: @", 2, "unexpected '@'"),
        ('a: "x', 1, "unexpected '\"'"),
        ('a: "x\ny"', 1, "unexpected '\"'"),
        (r'a: "\q"', 1, r"unknown escape \q"),
        (r'a: "\xff"', 1, "a string is not valid UTF-8"),
        (r'a: "\U00110000"', 1, "there is no character U+110000"),
        (r'a: "\ud800"', 1, "there is no character U+D800"),
        ("a: [1 2]", 1, "expected ,, not 2"),
        ("[a..b]: 1", 1, "[a..b] is not the name of an extension"),
        ("[a: 1", 1, "expected ], not :"),
        ("a { " * 101 + "}" * 101, 1, "nested more than 100 levels"),
    ],
)
def test_faults_name_their_line(text, line, message):
    with pytest.raises(SyntaxFault) as caught:
        parse(text)
    assert message in str(caught.value)
    assert caught.value.line == line


@pytest.mark.slow
@given(st.text(alphabet="ab:{}<>[]\"'\\#\n ,;./-0x1") | st.text())
def test_any_text_is_read_or_refused(text):
    try:
        parse(text)
    except SyntaxFault:
        return


@given(st.text())
def test_quoted_string_is_read_back(text):
    assert plain(parse(f"a: {quote(text)} b: 1")) == [("a", text), ("b", 1)]


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", '""'),
        ("it's", '"it\'s"'),
        ('{"a": 1}', "'{\"a\": 1}'"),
        ("""'"\\\n""", r'''"'\"\\\n"'''),
    ],
)
def test_string_is_quoted_with_fewest_escapes(text, quoted):
    assert quote(text) == quoted
