"""Tests of `fastovms/text/values.py`."""

from __future__ import annotations

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.text.scanning import IncrementalParser, PieceCollector, Scanner
from fastovms.text.values import (
    JSON,
    PYTHON,
    Copy,
    copy_json,
    copy_python,
    escape,
    to_json,
)
from tests.text.tools.checks import cuts


def copied(copy: Copy, text: str) -> tuple[str, bool, str]:
    """Returns what a copy writes of a text, whether that was a whole value, and the text that is
    left to be read: the same however the text is cut."""
    found = set()
    for parts in cuts(text):
        told: list[str] = []
        results: list[tuple[bool, str]] = []

        def start(scan: Scanner, out: PieceCollector, told=told, results=results):
            is_whole = yield from copy(scan, told.append)
            rest: list[str] = []
            yield from scan.rest(rest.append)
            results.append((is_whole, "".join(rest)))

        parser = IncrementalParser(start)
        for part in parts:
            parser.push(part)
        parser.finish()
        [(is_whole, rest)] = results
        found.add(("".join(told), is_whole, rest))
    [same] = found
    return same


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


@pytest.mark.slow
def test_deeply_nested_value_costs_no_recursion() -> None:
    text = "[" * 100_000 + "]" * 100_000
    assert to_json(text, JSON) == text
