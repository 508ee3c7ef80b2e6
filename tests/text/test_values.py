"""Tests of `fastovms/text/values.py`."""

from __future__ import annotations

import ast
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.text.scanning import Scanner
from fastovms.text.values import (
    JSON,
    PYTHON,
    copy_json,
    copy_python,
    copy_value,
    escape,
    is_json,
    read_string,
    read_word,
    starts_string,
    to_json,
)
from tests.text.copying import copied, read_whole, rest_of

# JSON as models write it, with their usual faults mended.


@given(st.text())
def test_escaped_text_is_the_inside_of_a_json_string(text: str) -> None:
    assert json.loads(f'"{escape(text)}"') == text


@pytest.mark.parametrize(
    ("text", "told", "is_whole", "rest"),
    [
        ('{"a": [1, -2.5e3, true, null, "\\u00e9"]}x', '{"a": [1, -2.5e3, true, null, "\\u00e9"]}',
         True, "x"),
        (' {"a" : { } } ', ' {"a" : { } }', True, " "),
        ('"a\nb\tc"', '"a\\nb\\tc"', True, ""),
        (r'"\d \u12x \" \\"', r'"\\d \\u12x \" \\"', True, ""),
        ('"half \\u12', '"half \\u12', False, ""),
        (r'"\ud83d\ude00 \uD83D\uDE00"', r'"\ud83d\ude00 \uD83D\uDE00"', True, ""),
        (r'{"\ud800": "\udc00\ud800"}', r'{"\ufffd": "\ufffd\ufffd"}', True, ""),
        (r'"\ud83d\ud83d\ude00\n"', r'"\ufffd\ud83d\ude00\n"', True, ""),
        (r'"\ud83d\u00e9', r'"\ufffd\u00e9', False, ""),
        (r'"\ud83d\u00e', r'"\ufffd\u00e', False, ""),
        (r'"\ud83d', r'"\ud83d', False, ""),
        (r'"\ud83d\ude0', r'"\ud83d\ude0', False, ""),
        (r'"\ude00', r'"\ufffd', False, ""),
        ('{"a": tr', '{"a": tr', False, ""),
        ('{"a": trx}', '{"a": ', False, "trx}"),
        ("[1,]", "[1,", False, "]"),
        ("[01]", "[", False, "01]"),
        ("{a: 1}", "{", False, "a: 1}"),
        ('{"a" 1}', '{"a" ', False, "1}"),
        ("'a'", "", False, "'a'"),
        ("", "", False, ""),
    ],
)  # fmt: skip
def test_copy_json_repairs_strings_and_stops_at_the_first_fault(
    text: str, told: str, is_whole: bool, rest: str
) -> None:
    assert copied(copy_json, text) == (told, is_whole, rest)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('"a\\"b"', 'a"b'),
        ('""', ""),
        (r'"a\ud800"', "a\ufffd"),
        ('"a', None),
        ("a", None),
        ("", None),
    ],
)
def test_read_string_decodes_a_complete_json_string(text: str, read: str | None) -> None:
    scan = Scanner()
    assert read_whole(scan, read_string(scan), [text]) == read


@pytest.mark.parametrize("text", ["1", '"a"', '{"a":[{}]}', "[" * 5000 + "]" * 5000])
def test_one_json_value_is_json(text: str) -> None:
    assert is_json(text)


@pytest.mark.parametrize("text", ["", "1 ", "a", '"a\nb"', "[" * 5000, "[1,]", "1 2"])
def test_text_other_than_one_json_value_is_not_json(text: str) -> None:
    assert not is_json(text)


# Literals of Python become JSON.


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda items: st.lists(items) | st.dictionaries(st.text(), items),
    max_leaves=8,
)


@pytest.mark.slow
@given(VALUES)
def test_repr_of_a_python_value_is_read(value: object) -> None:
    written = repr(value)
    assert ast.literal_eval(written) == value
    assert json.loads(to_json(written, PYTHON) or "no value") == value


@pytest.mark.parametrize(
    ("text", "told", "is_whole", "rest"),
    [
        ("(1, 'a',)", '[1,"a"]', True, ""),
        ("{'a': True, 'b': null}!", '{"a":true,"b":null}', True, "!"),
        ("+.5", '"+.5"', True, ""),
        ("[-0_07, 1_0e999, 1e999, -1e5]", '["-0_07","1_0e999","1e999",-1e5]', True, ""),
        (r"'\x41\u00e9\U0001F600\q'", r'"A\u00e9\ud83d\ude00\\q"', True, ""),
        (r"'\ud83d\ude00 \ud83d \U0000dc00'", r'"\ud83d\ude00 \ufffd \ufffd"', True, ""),
        (r"'\U00110000'", r'"\\U00110000"', True, ""),
        ("'a\nb'", '"a\\nb"', True, ""),
        ("'\\x4", '"', False, ""),
        ("'a", '"a', False, ""),
        ("[Tr", "[tr", False, ""),
        ("[nan]", "[", False, "nan]"),
        ("{1: 2}", "{", False, "1: 2}"),
    ],
)
def test_copy_python_writes_python_literals_as_json(
    text: str, told: str, is_whole: bool, rest: str
) -> None:
    assert copied(copy_python, text) == (told, is_whole, rest)


# Values in any notation: containers, white space, and the first character that does not belong.


LOOSE = replace(JSON, brackets={"(": ")", "<": "}"}, quotes=('"', "<q>"), is_json=False)
"""Tuples in parentheses, and objects that begin with `<`."""


@pytest.mark.parametrize(
    ("text", "told", "is_whole", "rest"),
    [
        ("( 1 , 2 )", "[1,2]", True, ""),
        ("(1,)", "[1]", True, ""),
        ("()", "[]", True, ""),
        ('<"a": (1)}', '{"a":[1]}', True, ""),
        ("(1 2)", "[1", False, "2)"),
        ("(1", "[1", False, ""),
        ("[1]", "", False, "[1]"),
    ],
)
def test_a_notation_of_ones_own(text: str, told: str, is_whole: bool, rest: str) -> None:
    assert copied(lambda scan, emit: copy_value(scan, emit, LOOSE), text) == (told, is_whole, rest)


@pytest.mark.slow
def test_depth_costs_no_recursion() -> None:
    text = "[" * 100_000 + "]" * 100_000
    assert to_json(text, JSON) == text


@pytest.mark.parametrize(
    ("text", "json"), [("1", "1"), (" 1", " 1"), ("1 ", None), ("1,", None), ("", None)]
)
def test_to_json_accepts_exactly_one_value(text: str, json: str | None) -> None:
    assert to_json(text, JSON) == json


@pytest.mark.parametrize(
    ("text", "word", "rest"), [("a.b_1-c(d", "a.b_1-c", "(d"), ("é", "", "é"), ("", "", "")]
)
def test_words_are_ascii(text: str, word: str, rest: str) -> None:
    scan = Scanner()
    assert read_whole(scan, read_word(scan), [text]) == word
    assert rest_of(scan) == rest


@pytest.mark.parametrize(
    ("text", "starts", "rest"),
    [('"a', True, '"a'), ("<q>", True, "<q>"), ("<x>", False, "<x>"), ("<q", False, "")],
)
def test_incomplete_quote_at_the_end_is_dropped(text: str, starts: bool, rest: str) -> None:
    scan = Scanner()
    assert read_whole(scan, starts_string(scan, LOOSE), list(text)) is starts
    assert rest_of(scan) == rest
