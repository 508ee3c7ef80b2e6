"""Tests of `fastovms/parts/speech_out/sentences.py` and `encode.py`."""

from __future__ import annotations

import numpy as np
import pytest

from fastovms.parts.speech_out.encode import resampled
from fastovms.parts.speech_out.sentences import MAX_CHARS, readable, sentences

LONG = "This sentence is long enough to be spoken alone."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello", ["Hello"]),
        (f"  {LONG}\n\n{LONG}  ", [LONG, LONG]),
        (f"{LONG} {LONG}", [LONG, LONG]),
        (f'He said: "{LONG}" {LONG}', [f'He said: "{LONG}"', LONG]),
        (f"Mr. Smith came. {LONG}", ["Mr. Smith came. " + LONG]),
        (f"It costs 3.50 here, does it not? {LONG}", ["It costs 3.50 here, does it not?", LONG]),
        ("\u4f60" * 30 + "\u3002" + "\u4f60" * 3, ["\u4f60" * 30 + "\u3002", "\u4f60" * 3]),
        ("a" * 700, ["a" * 300, "a" * 300, "a" * 100]),
    ],
)
def test_sentences_of_a_text(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It costs 999,999,999,999 dollars.", "It costs 999,999,999,999 dollars."),
        ("$36,500,000,000,000.50", "$36 trillion 500000000000.50"),
        ("2000000000000th", "2 trillionth"),
        ("1,,2,,3,4,5,6,7,8,9,0,1,2,3,4", "12 trillion 345678901234"),
        ("-9223372036854775807", "-9 2 2 3 3 7 2 0 3 6 8 5 4 7 7 5 8 0 7"),
        ("0000000000001", "0 0 0 0 0 0 0 0 0 0 0 0 1"),
    ],
)
def test_large_numbers_are_readable_in_english(text: str, expected: str) -> None:
    assert readable(text, "en-gb") == expected
    assert readable(text, "es") == text


def test_plus_signs_are_readable_in_hindi() -> None:
    assert readable("C++", "hi") == "C \u092a\u094d\u0932\u0938  \u092a\u094d\u0932\u0938 "


@pytest.mark.parametrize(
    "text", ["word, " * 600, "word " * 600, "-" * 4096, ".\n" * 2000, "a.) " * 900]
)
def test_pieces_of_any_text_fit_and_have_all_its_characters(text: str) -> None:
    found = sentences(text)
    assert max(map(len, found)) <= MAX_CHARS
    assert sum(map(len, found)) <= len(text)
    letters = [character for character in text if character.isalpha()]
    assert [character for piece in found for character in piece if character.isalpha()] == letters


@pytest.mark.parametrize(("rate", "wanted"), [(16_000, 24_000), (24_000, 16_000), (24_000, 24_000)])
def test_resampled_tone_is_the_tone_at_another_rate(rate: int, wanted: int) -> None:
    def tone(rate: int) -> np.ndarray:
        return (10_000 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)).astype(np.int16)

    found = resampled(tone(rate), rate, wanted)
    assert np.abs(found - tone(wanted).astype(np.int32)).max() <= 2
    assert not len(resampled(np.zeros(0, np.int16), rate, wanted))
