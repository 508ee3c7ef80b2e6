"""JSON as models write it, with their usual faults mended."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.text.scanning.json_text import copy_json, escape, is_json, read_string
from fastovms.text.scanning.scanner import Scanner
from tests.text.scanning.copying import copied, read_whole


@given(st.text())
def test_what_is_escaped_is_the_inside_of_a_string(text: str) -> None:
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
def test_copy_json(text: str, told: str, is_whole: bool, rest: str) -> None:
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
def test_read_string(text: str, read: str | None) -> None:
    scan = Scanner()
    assert read_whole(scan, read_string(scan), [text]) == read


@pytest.mark.parametrize("text", ["1", '"a"', '{"a":[{}]}', "[" * 5000 + "]" * 5000])
def test_json(text: str) -> None:
    assert is_json(text)


@pytest.mark.parametrize("text", ["", "1 ", "a", '"a\nb"', "[" * 5000, "[1,]", "1 2"])
def test_no_json(text: str) -> None:
    assert not is_json(text)
