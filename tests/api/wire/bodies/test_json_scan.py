from __future__ import annotations

import json
import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastovms.api.wire.bodies.json_scan import LONG_STRING, MAX_STRUCTURE, MAX_WEIGHT, scan
from fastovms.errors import MalformedBody

LETTERS = 'a"\\/\n\t[]{},:é語😀\u2028 1e300'


def strings_of(text: bytes) -> list[str]:
    """Decoded contents of the spans."""
    return [json.loads(b'"%b"' % text[span.start : span.end]) for span in scan(text)]


def long_ones(value: object) -> list[str]:
    """Strings of a value whose text is long, in the order of the text."""
    found: list[str] = []

    def visit(value: object) -> None:
        if isinstance(value, str):
            if len(json.dumps(value, ensure_ascii=False).encode()) - 2 >= LONG_STRING:
                found.append(value)
        elif isinstance(value, list):
            for element in value:
                visit(element)
        elif isinstance(value, dict):
            for key, member in value.items():
                visit(key)
                visit(member)

    visit(value)
    return found


def random_text(rng: random.Random) -> str:
    length = rng.choice((0, 1, 5, 100, 8000, LONG_STRING, 60_000, 70_000, 200_000))
    piece = "".join(rng.choices(LETTERS, k=rng.randint(1, 50)))
    return (piece * (length // len(piece) + 1))[: length + rng.randint(0, 9)]


@pytest.mark.parametrize("seed", range(60))
def test_all_long_strings_are_found(seed):
    rng = random.Random(seed)
    value = {
        random_text(rng) + str(number): rng.choice((random_text(rng), [random_text(rng), 1, {}]))
        for number in range(rng.randint(1, 6))
    }
    text = json.dumps(value, ensure_ascii=False).encode()
    assert strings_of(text) == long_ones(value)


@pytest.mark.parametrize("shift", range(8))
@pytest.mark.parametrize("unit", [b"\\\\", b'\\"', b"\\u0022", b'x\\\\\\"'])
def test_an_escape_across_a_window(shift, unit):
    text = b'["' + b"x" * shift + unit * 40_000 + b'", "short", [[1]]]'
    assert [text[span.start - 1 : span.start] for span in scan(text)] == [b'"']
    assert [text[span.end : span.end + 1] for span in scan(text)] == [b'"']


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"1," * MAX_WEIGHT + b"1]",
        b"[" + b"{}," * 130_000 + b"1]",
        b"{" + b'"a":1,' * 100_000 + b'"b":1}',
        b"[" + b"1e300," * 800 + b"1]",
        b"[" + b"12345678901234567890," * 800 + b"1]",
        b"[" + b"9007199254740993.0," * 50_000 + b"1]",
    ],
)
def test_too_many_values(text):
    with pytest.raises(MalformedBody, match="more than 500000 values"):
        scan(text)


@pytest.mark.parametrize(
    "text",
    [
        b'"' + b"1,[{e300" * 400_000 + b'"',
        b"[" + b"151234," * 490_000 + b"1]",
        b'["a' + b'","a' * 240_000 + b'"]',
        b"[" + b"[" * 99 + b"]" * 99 + b"]",
        b"[" + b"0.12345," * 400_000 + b"1]",
        b"\\" * 200_000,
        b"[" + b"true,false,null," * 100_000 + b"1]",
        b"[" + b"1.5," * 400_000 + b"1e300]",
        b"]" * 200_000,
        b"",
    ],
)
def test_that_can_be_decoded(text):
    scan(text)


def test_too_much_white_space():
    with pytest.raises(MalformedBody, match="outside of strings"):
        scan(b" " * (MAX_STRUCTURE + 1))


@pytest.mark.parametrize("filler", [b"", b" " * 70_000, b'"' + b"x" * 70_000 + b'",'])
def test_nesting_beyond_a_window(filler):
    text = b"[" * 60 + filler + b"[" * 41
    with pytest.raises(MalformedBody, match="nested more than 100 levels"):
        scan(text)
    scan(b"[" * 60 + filler + b"]" * 60 + b"[" * 100)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='\\"[]{},:1eu0dé', max_size=60).map(str.encode))
def test_what_is_no_json_does_no_harm(text):
    with suppress(MalformedBody):
        for span in scan(text * 2000):
            assert 0 < span.start < span.end
