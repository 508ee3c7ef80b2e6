from __future__ import annotations

import pytest

from fastovms.quoting import MAX_QUOTED, is_id, one_line, quotable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("zwei\nZeilen, ö, 語, 😀", "zwei\nZeilen, ö, 語, 😀"),
        ("a\ud800b", r"a\ud800b"),
        ("\ud83d\ude00", r"\ud83d\ude00"),
        ("x" * (MAX_QUOTED + 1), "x" * (MAX_QUOTED - 3) + "..."),
    ],
)
def test_quotable_text_is_short_and_can_be_encoded(text, expected):
    assert quotable(text) == expected
    assert quotable(text).encode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain, ö, 語, 😀", "plain, ö, 語, 😀"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("\x1b[2J\x7f\x00\x9b", r"\u001b[2J\u007f\u0000\u009b"),
        ("a\x85b\u2028c\u2029d", r"a\u0085b\u2028c\u2029d"),
        ("\u202egnp.exe\u2066", r"\u202egnp.exe\u2066"),
        ("a\ud800b", r"a\ud800b"),
    ],
)
def test_one_line_escapes_line_breaks_and_control_characters(text, expected):
    assert one_line(text) == expected
    assert len(one_line(text).splitlines()) == 1


@pytest.mark.parametrize("text", ["a", "resp_1", "a/b:c.d", "!~", "x" * 8])
def test_visible_ascii_up_to_the_length_is_an_id(text):
    assert is_id(text, 8)


@pytest.mark.parametrize("text", ["", "a b", "a\n", "\x1b", "ö", "\ud800", "x" * 9, "\x7f", "\x85"])
def test_text_with_other_characters_is_no_id(text):
    assert not is_id(text, 8)
