"""Values in any notation: containers, white space, and the first character that does not belong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastovms.text.scanning.json_text import JSON
from fastovms.text.scanning.literals import copy_value, read_word, starts_string, to_json
from fastovms.text.scanning.scanner import Scanner
from tests.text.scanning.copying import copied, read_whole, rest_of

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


def test_depth_costs_no_recursion() -> None:
    text = "[" * 100_000 + "]" * 100_000
    assert to_json(text, JSON) == text


@pytest.mark.parametrize(
    ("text", "json"), [("1", "1"), (" 1", " 1"), ("1 ", None), ("1,", None), ("", None)]
)
def test_one_value_and_nothing_else(text: str, json: str | None) -> None:
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
def test_what_the_end_leaves_of_a_quote_is_dropped(text: str, starts: bool, rest: str) -> None:
    scan = Scanner()
    assert read_whole(scan, starts_string(scan, LOOSE), list(text)) is starts
    assert rest_of(scan) == rest
