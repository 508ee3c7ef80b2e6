from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastovms.text.detokenizer import Detokenizer, TableDetokenizer
from fastovms.text.stream import TextStream
from fastovms.text.tokenizer import Tokenizer
from fastovms.text.tracking import TextToken, TrackingDetokenizer, utf8_length

TOKENS = ["Hello", " wörld", "é".encode()[:1], "é".encode()[1:], "<|x|>", "!"]
TABLE = [piece if isinstance(piece, bytes) else piece.encode() for piece in TOKENS]
TABLE[4] = b""


def table(token_bytes: list[bytes]) -> TableDetokenizer:
    return TableDetokenizer(token_bytes, strip_leading_space=False)


def track(
    detokenizer: Detokenizer,
    chunks: list[list[int]],
    measure: Callable[[str], int] = len,
    stop: tuple[str, ...] = (),
) -> tuple[str, list[TextToken], list[tuple[str, list[TextToken]]]]:
    """The text, its tokens, and what each push released."""
    tracking = TrackingDetokenizer(detokenizer, measure)
    stream = TextStream(tracking, stop)
    released = []
    for chunk in chunks:
        delta = stream.push(chunk)
        released.append((delta.text, tracking.take(delta.text)))
        if delta.stop is not None:
            break
    else:
        delta = stream.flush()
        released.append((delta.text, tracking.take(delta.text, ended=delta.stop is None)))
    text = "".join(text for text, _ in released)
    return text, [token for _, tokens in released for token in tokens], released


def test_offsets_are_where_the_text_of_a_token_begins():
    text, tokens, _ = track(table(TABLE), [[0, 1, 2, 3, 4, 5]])
    assert text == "Hello wörldé!"
    assert [(token.token_id, token.offset) for token in tokens] == [
        (0, 0), (1, 5), (2, 11), (3, 11), (4, 12), (5, 12)
    ]  # fmt: skip


def test_offsets_in_bytes():
    _, tokens, _ = track(table(TABLE), [[0, 1, 2, 3, 4, 5]], utf8_length)
    assert [token.offset for token in tokens] == [0, 5, 12, 12, 14, 14]


def test_a_token_is_released_with_the_text_it_begins():
    _, _, released = track(table(TABLE), [[0], [2], [3], [4], [5], []])
    assert [(text, [token.token_id for token in tokens]) for text, tokens in released] == [
        ("Hello", [0]), ("", []), ("é", [2, 3]), ("", []), ("!", [4, 5]), ("", []), ("", [])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stop", "text", "token_ids"),
    [
        ("é", "Hello wörld", [0, 1]),
        ("rld", "Hello wö", [0, 1]),
        ("Hello", "", []),
        ("x", "Hello wörldé!", [0, 1, 2, 3, 5]),
    ],
)
@pytest.mark.parametrize("chunks", [[[0, 1, 2, 3, 5]], [[0], [1], [2], [3], [5]]])
def test_tokens_behind_a_stop_string_are_left_out(stop, text, token_ids, chunks):
    found, tokens, _ = track(table(TABLE), chunks, stop=(stop,))
    assert found == text
    assert [token.token_id for token in tokens] == token_ids


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    token_ids=st.lists(st.integers(0, 10**6), max_size=12),
    cuts=st.lists(st.integers(0, 12)),
    stop=st.lists(st.text(max_size=3, min_size=1), max_size=2),
)
def test_any_cut_gives_the_same_tokens(tokenizer: Tokenizer, token_ids, cuts, stop):
    token_ids = [token_id % tokenizer.vocab_size for token_id in token_ids]
    edges = [0, *sorted(min(cut, len(token_ids)) for cut in cuts), len(token_ids)]
    chunks = [token_ids[start:end] for start, end in pairwise(edges)]
    whole_text, whole, _ = track(tokenizer.detokenizer(), [token_ids], stop=tuple(stop))
    text, tokens, released = track(tokenizer.detokenizer(), chunks, stop=tuple(stop))
    assert (text, tokens) == (whole_text, whole)
    offsets = [token.offset for token in tokens]
    assert offsets == sorted(offsets)
    assert all(0 <= offset <= len(text) for offset in offsets)
    position = 0
    for piece, piece_tokens in released:
        position += len(piece)
        assert all(token.offset <= position for token in piece_tokens), "never before its text"


def test_the_offset_is_the_length_of_what_went_before(byte_level: Tokenizer, clean_up: Tokenizer):
    for tokenizer in (byte_level, clean_up):
        token_ids = tokenizer.encode("Hello there, small world. It is n't so.")
        _, tokens, _ = track(tokenizer.detokenizer(), [token_ids])
        for position, token in enumerate(tokens):
            assert abs(token.offset - len(tokenizer.decode(token_ids[:position]))) <= 1


def test_token_bytes(tokenizer: Tokenizer):
    token_ids = tokenizer.encode("small fox", add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, token_ids)).decode().strip() == "small fox"
    assert tokenizer.token_bytes(10**6) == b""
    special = min(tokenizer.special_token_ids)
    assert tokenizer.token_bytes(special) != b""
    name = tokenizer.token_bytes(special).decode()
    assert tokenizer.find_tokens([name, "no such token"]) == [special, None]
