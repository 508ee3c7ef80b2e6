"""Literals of Python become JSON."""

from __future__ import annotations

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.text.scanning.literals import to_json
from fastovms.text.scanning.python_text import PYTHON, copy_python
from tests.text.scanning.copying import copied

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda items: st.lists(items) | st.dictionaries(st.text(), items),
    max_leaves=8,
)


@given(VALUES)
def test_what_python_writes_is_read(value: object) -> None:
    written = repr(value)
    assert ast.literal_eval(written) == value
    assert json.loads(to_json(written, PYTHON) or "no value") == value


@pytest.mark.parametrize(
    ("text", "told", "is_whole", "rest"),
    [
        ("(1, 'a',)", '[1,"a"]', True, ""),
        ("{'a': True, 'b': null}!", '{"a":true,"b":null}', True, "!"),
        ("+.5", "0.5", True, ""),
        ("-0_07", "-7", True, ""),
        ("1_0e999", "", False, "1_0e999"),
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
def test_copy_python(text: str, told: str, is_whole: bool, rest: str) -> None:
    assert copied(copy_python, text) == (told, is_whole, rest)
