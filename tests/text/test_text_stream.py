from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastovms.text.text_stream import TextStream
from fastovms.text.tokens.detokenizer import TableDetokenizer
from fastovms.text.tokens.tokenizer import Tokenizer

# Token id = byte.
BYTES = [bytes([byte]) for byte in range(256)]


def stream(*stop: str, include_stop: bool = False, min_tokens: int = 0) -> TextStream:
    detokenizer = TableDetokenizer(BYTES, strip_leading_space=False)
    return TextStream(detokenizer, stop, include_stop=include_stop, min_tokens=min_tokens)


def test_without_stop_strings_text_passes() -> None:
    text = stream()
    assert text.push(b"ab\xe2\x82")[:3] == ("ab", None, 4)
    assert text.push(b"\xac")[:3] == ("€", None, 5)
    assert text.push(b"\xe2")[:3] == ("", None, 6)
    assert text.flush()[:3] == ("\N{REPLACEMENT CHARACTER}", None, 6)


@pytest.mark.parametrize(("include_stop", "shown"), [(False, "ab"), (True, "abEND")])
def test_tokens_behind_the_stop_string_are_not_counted(include_stop: bool, shown: str) -> None:
    text = stream("END", include_stop=include_stop)
    first = text.push(b"abE")
    second = text.push(b"NDcd")
    assert (first.stop, first.num_tokens) == (None, 3)
    assert (second.stop, second.num_tokens) == ("END", 5)
    assert first.text + second.text == shown
    assert text.push(b"xyz")[:3] == ("", "END", 5)
    assert text.flush()[:3] == ("", "END", 5)


@pytest.mark.parametrize(
    ("min_tokens", "shown", "num_tokens"),
    [(0, "a", 3), (2, "a", 3), (3, "a--b", 6), (5, "a--b", 6), (6, "a--b--c", None)],
)
def test_a_stop_string_within_the_first_tokens_ends_nothing(
    min_tokens: int, shown: str, num_tokens: int | None
) -> None:
    text = stream("--", min_tokens=min_tokens)
    delta, last = text.push(b"a--b--c"), text.flush()
    assert delta.text + last.text == shown
    assert (last.stop, last.num_tokens) == (("--", num_tokens) if num_tokens else (None, 7))


def test_stop_string_is_found_in_characters_that_span_tokens() -> None:
    text = stream("€")
    assert text.push(b"a\xe2\x82")[:3] == ("a", None, 3)
    assert text.push(b"\xac!")[:3] == ("", "€", 4)


def test_flush_may_complete_a_stop_string() -> None:
    text = stream("\N{REPLACEMENT CHARACTER}")
    assert text.push(b"a\xe2")[:3] == ("a", None, 2)
    assert text.flush()[:3] == ("", "\N{REPLACEMENT CHARACTER}", 2)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_cut_of_the_tokens_gives_the_same(
    sentencepiece: Tokenizer, data: st.DataObject
) -> None:
    token_ids = sentencepiece.encode("one two three four five, the fox said: wait for the END now")
    stop = data.draw(st.lists(st.sampled_from([" fox", "five,", "END", "absent", "ee f"])))
    include_stop = data.draw(st.booleans())

    def run(chunks: list[list[int]]) -> tuple[str, str | None, int]:
        text = TextStream(sentencepiece.detokenizer(), stop, include_stop=include_stop)
        pieces = [text.push(chunk).text for chunk in chunks]
        last = text.flush()
        return "".join([*pieces, last.text]), last.stop, last.num_tokens

    cuts = sorted(data.draw(st.lists(st.integers(0, len(token_ids)), max_size=6)))
    chunks = [token_ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(token_ids)], strict=True)]
    assert run(chunks) == run([[token_id] for token_id in token_ids])
