from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fastovms.text.tokens.detokenizer import (
    REPLACEMENT,
    TableDetokenizer,
    WindowDetokenizer,
    decode_utf8,
)
from fastovms.text.tokens.token_table import TokenTable
from fastovms.text.tokens.tokenizer import Tokenizer

R = REPLACEMENT

relaxed = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

# Indices into a vocabulary of any size, cut into pushes.
chunks_of_ids = st.lists(st.lists(st.integers(0, 10**6), max_size=6), max_size=20)


def pieces(
    detokenizer: TableDetokenizer | WindowDetokenizer, chunks: Sequence[Sequence[int]]
) -> list[str]:
    return [*map(detokenizer.push, chunks), detokenizer.flush()]


# Bytes and text: the rules of OpenVINO's UTF8Validate.


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"a\x00b", "a\x00b"),
        ("ä€😀".encode(), "ä€😀"),
        (b"\xff\xfeA", R + R + "A"),
        (b"\x80A", R + "A"),
        (b"\xe2\x82A", R + "A"),
        (b"\xe2\x82", R),
        (b"\xe2\x82\xe2\x82\xac", R + "€"),
        # Here errors="replace" of bytes.decode would give more.
        (b"\xe0\x80A", R + "A"),
        (b"\xf0\x80\x80A", R + "A"),
        (b"\xed\xa0A", R + "A"),
        (b"\xf5\x80A", R + "A"),
        # Complete, but no character: overlong, surrogate, above U+10FFFF.
        (b"\xc0\x80A", 2 * R + "A"),
        (b"\xe0\x80\x80A", 3 * R + "A"),
        (b"\xed\xa0\x80A", 3 * R + "A"),
        (b"\xf4\x90\x80\x80A", 4 * R + "A"),
        (b"\xf8\x88\x80\x80\x80A", 5 * R + "A"),
    ],
)
def test_decode_utf8_agrees_with_the_tokenizer(
    data: bytes, text: str, byte_level: Tokenizer, sentencepiece: Tokenizer
) -> None:
    assert decode_utf8(data, final=True) == (text, b"")
    for tokenizer in (byte_level, sentencepiece):
        assert tokenizer.decode(ids_of_bytes(tokenizer, data)) == text


def ids_of_bytes(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One token for each byte."""
    table = tokenizer._table
    assert table is not None
    return [list(table.token_bytes).index(bytes([byte])) for byte in data]


@pytest.mark.parametrize(
    ("data", "text", "incomplete"),
    [
        (b"A\xe2\x82", "A", b"\xe2\x82"),
        (b"\xf0", "", b"\xf0"),
        (b"\xf0\x9f\x98", "", b"\xf0\x9f\x98"),
        (b"\xe2A\xc3", R + "A", b"\xc3"),
        (b"\xc0", "", b"\xc0"),
        (b"\xff", R, b""),
        (b"\x80", R, b""),
    ],
)
def test_incomplete_character_waits(data: bytes, text: str, incomplete: bytes) -> None:
    assert decode_utf8(data, final=False) == (text, incomplete)


@given(st.text(), st.data())
def test_valid_text_never_shows_half_a_character(text: str, data: st.DataObject) -> None:
    raw = text.encode("utf-8", "replace")
    table = [bytes([byte]) for byte in range(256)]
    detokenizer = TableDetokenizer(table, strip_leading_space=False)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    chunks = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    text_so_far = ""
    num_bytes = 0
    for chunk in chunks:
        text_so_far += detokenizer.push(chunk)
        num_bytes += len(chunk)
        assert text_so_far == raw[:num_bytes].decode("utf-8", "ignore")
    assert text_so_far + detokenizer.flush() == raw.decode()


# Against the tokenizer's own decode.


@relaxed
@given(chunks_of_ids, st.booleans())
@example([[0], [1, 2]], True)
def test_pieces_join_to_the_decoded_whole(
    tokenizer: Tokenizer, chunks: list[list[int]], skip_special_tokens: bool
) -> None:
    chunks = [[number % tokenizer.vocab_size for number in chunk] for chunk in chunks]
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip_special_tokens)
    text = "".join([*map(detokenizer.push, chunks), detokenizer.flush()])
    whole = [token_id for chunk in chunks for token_id in chunk]
    assert text == tokenizer.decode(whole, skip_special_tokens=skip_special_tokens)


@relaxed
@given(st.binary(max_size=24))
def test_torn_bytes_join_to_the_decoded_whole(
    byte_level: Tokenizer, sentencepiece: Tokenizer, data: bytes
) -> None:
    for tokenizer in (byte_level, sentencepiece):
        token_ids = ids_of_bytes(tokenizer, data)
        detokenizer = tokenizer.detokenizer()
        text = "".join(detokenizer.push([token_id]) for token_id in token_ids)
        assert text + detokenizer.flush() == tokenizer.decode(token_ids)


def test_only_the_first_space_is_stripped(sentencepiece: Tokenizer) -> None:
    assert pieces_of_text(sentencepiece, "  two  words") == "  two  words"
    table = sentencepiece._table
    assert table is not None
    space, begin, bang = (table.token_bytes.index(data) for data in (b" ", b"<s>", b"!"))
    for token_ids, text in (
        ([space, bang, space, bang], "! !"),
        ([space, space, bang], " !"),
        ([begin, space, bang], "!"),
        ([bang, space], "! "),
    ):
        detokenizer = sentencepiece.detokenizer()
        shown = "".join(detokenizer.push([token_id]) for token_id in token_ids)
        assert shown + detokenizer.flush() == text == sentencepiece.decode(token_ids)


def pieces_of_text(tokenizer: Tokenizer, text: str) -> str:
    detokenizer = tokenizer.detokenizer()
    token_ids = tokenizer.encode(text)
    return "".join(detokenizer.push([token_id]) for token_id in token_ids) + detokenizer.flush()


def test_ids_outside_the_vocabulary_add_nothing(tokenizer: Tokenizer) -> None:
    detokenizer = tokenizer.detokenizer()
    (letter,) = tokenizer.encode("!", add_special_tokens=False)[-1:]
    text = detokenizer.push([tokenizer.vocab_size, letter, 10**9]) + detokenizer.flush()
    assert text == "!" == tokenizer.decode([tokenizer.vocab_size, letter, 10**9])


# The window, on any vocabulary.


@relaxed
@given(chunks_of_ids)
def test_window_joins_to_the_decoded_whole(
    sentencepiece: Tokenizer, chunks: list[list[int]]
) -> None:
    chunks = [[number % sentencepiece.vocab_size for number in chunk] for chunk in chunks]
    text = "".join(pieces(WindowDetokenizer(sentencepiece.decode), chunks))
    assert text == sentencepiece.decode([token_id for chunk in chunks for token_id in chunk])


def test_window_cleans_up_across_tokens(clean_up: Tokenizer) -> None:
    detokenizer = clean_up.detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)
    token_ids = clean_up.encode("He did n't , he 's , they 've . " * 40 + "end")
    text = "".join(pieces(detokenizer, [[token_id] for token_id in token_ids]))
    assert text == "He didn't, he's, they've. " * 40 + "end"


def test_window_stays_small(clean_up: Tokenizer) -> None:
    lengths = []

    def decode(token_ids: list[int]) -> str:
        lengths.append(len(token_ids))
        return clean_up.decode(token_ids)

    token_ids = clean_up.encode("Once upon a time a fox lived. " * 60)
    detokenizer = WindowDetokenizer(decode)
    text = "".join(pieces(detokenizer, [[token_id] for token_id in token_ids]))
    assert text == clean_up.decode(token_ids)
    assert max(lengths) <= 4 * WindowDetokenizer.CONTEXT < len(token_ids)


def test_a_text_that_continues_another_keeps_its_first_space(sentencepiece: Tokenizer):
    token_ids = sentencepiece.encode("small fox", add_special_tokens=False)
    for continues, text in ((False, "small fox"), (True, " small fox")):
        detokenizer = sentencepiece.detokenizer(continues=continues)
        assert "".join(pieces(detokenizer, [token_ids])) == text


def test_special_tokens_are_skipped_but_for_those_that_a_kept_tag_begins_with() -> None:
    table = TokenTable([b"<|channel>", b"<channel|>", b"<eos>", b"thought"], frozenset({0, 1, 2}))
    for keep, text in (
        ([], "thought"),
        (["<|channel>thought"], "<|channel>thought"),
        (["<|channel>", "<channel|>"], "<|channel>thought<channel|>"),
        (["a<eos>"], "thought"),
    ):
        kept = table.skipping_special_tokens([tag.encode() for tag in keep])
        assert kept.decode([0, 3, 1, 2]) == text
