"""Tests of `fastovms/text/detokenizer.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastovms.text.detokenizer import (
    REPLACEMENT,
    LocatingDetokenizer,
    TableDetokenizer,
    TextToken,
    TrackingDetokenizer,
    WindowDetokenizer,
    decode_utf8,
    slices,
    utf8_length,
)
from fastovms.text.output import TextStream
from fastovms.text.tokenizer import Tokenizer, TokenTable

WORDS = "ab  cde f\n g " * 40 + "end"


@pytest.mark.parametrize("from_end", [False, True])
@pytest.mark.parametrize("text", [WORDS, "a" * 1000, " " * 1000, "a", "", "a b" * 700])
@pytest.mark.parametrize(("first", "longest"), [(8, 32), (20, 20), (100, 10)])
def test_slices_join_to_the_text(text, first, longest, from_end):
    found = list(slices(text, first, longest, from_end=from_end))
    assert "".join(found[::-1] if from_end else found) == text
    sizes = [min(longest, first * 2**i) for i in range(len(found))]
    assert all(0 < len(each) <= size for each, size in zip(found, sizes, strict=True))


@pytest.mark.parametrize("from_end", [False, True])
@pytest.mark.parametrize("keeps_spaces", [False, True])
def test_slices_are_cut_at_single_spaces(from_end, keeps_spaces):
    text = " ".join(["word"] * 200) + "  " + "x" * 20
    found = list(slices(text, 50, 50, from_end=from_end, keeps_spaces=keeps_spaces))
    if from_end:
        found.reverse()
    assert len(found) > 10
    assert ("" if keeps_spaces else " ").join(found) == text
    assert all(each.startswith(" ") == keeps_spaces for each in found[1:])


R = REPLACEMENT

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
def test_incomplete_character_is_held_back(data: bytes, text: str, incomplete: bytes) -> None:
    assert decode_utf8(data, final=False) == (text, incomplete)


# Against the tokenizer's own decode.


@pytest.mark.slow
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


def test_ids_outside_the_vocabulary_decode_to_no_text(tokenizer: Tokenizer) -> None:
    detokenizer = tokenizer.detokenizer()
    (letter,) = tokenizer.encode("!", add_special_tokens=False)[-1:]
    text = detokenizer.push([tokenizer.vocab_size, letter, 10**9]) + detokenizer.flush()
    assert text == "!" == tokenizer.decode([tokenizer.vocab_size, letter, 10**9])


# The window, on any vocabulary.


@pytest.mark.slow
def test_window_cleans_up_across_tokens(clean_up: Tokenizer) -> None:
    detokenizer = clean_up.detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)
    token_ids = clean_up.encode("He did n't , he 's , they 've . " * 40 + "end")
    text = "".join(pieces(detokenizer, [[token_id] for token_id in token_ids]))
    assert text == "He didn't, he's, they've. " * 40 + "end"


@pytest.mark.slow
def test_window_detokenizer_decodes_few_tokens_at_a_time(clean_up: Tokenizer) -> None:
    lengths = []

    def decode(token_ids: list[int]) -> str:
        lengths.append(len(token_ids))
        return clean_up.decode(token_ids)

    token_ids = clean_up.encode("Once upon a time a fox lived. " * 60)
    detokenizer = WindowDetokenizer(decode)
    text = "".join(pieces(detokenizer, [[token_id] for token_id in token_ids]))
    assert text == clean_up.decode(token_ids)
    assert max(lengths) <= 4 * WindowDetokenizer.CONTEXT < len(token_ids)


def test_continued_text_keeps_its_first_space(sentencepiece: Tokenizer):
    token_ids = sentencepiece.encode("small fox", add_special_tokens=False)
    for continues, text in ((False, "small fox"), (True, " small fox")):
        detokenizer = sentencepiece.detokenizer(continues=continues)
        assert "".join(pieces(detokenizer, [token_ids])) == text


def test_special_tokens_are_skipped_except_those_of_kept_tags() -> None:
    table = TokenTable([b"<|channel>", b"<channel|>", b"<eos>", b"thought"], frozenset({0, 1, 2}))
    for keep, text in (
        ([], "thought"),
        (["<|channel>thought"], "<|channel>thought"),
        (["<|channel>", "<channel|>"], "<|channel>thought<channel|>"),
        (["a<eos>"], "thought"),
    ):
        kept = table.skipping_special_tokens([tag.encode() for tag in keep])
        assert kept.decode([0, 3, 1, 2]) == text


TOKENS = ["Hello", " wörld", "é".encode()[:1], "é".encode()[1:], "<|x|>", "!"]
TABLE = [piece if isinstance(piece, bytes) else piece.encode() for piece in TOKENS]
TABLE[4] = b""


def table(token_bytes: list[bytes]) -> TableDetokenizer:
    return TableDetokenizer(token_bytes, strip_leading_space=False)


def track(
    detokenizer: LocatingDetokenizer,
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


def test_offset_is_where_the_text_of_a_token_begins():
    text, tokens, _ = track(table(TABLE), [[0, 1, 2, 3, 4, 5]])
    assert text == "Hello wörldé!"
    assert [(token.token_id, token.offset) for token in tokens] == [
        (0, 0), (1, 5), (2, 11), (3, 11), (4, 12), (5, 12)
    ]  # fmt: skip


def test_token_is_released_with_the_text_that_it_begins():
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
def test_tokens_after_a_stop_string_are_left_out(stop, text, token_ids, chunks):
    found, tokens, _ = track(table(TABLE), chunks, stop=(stop,))
    assert found == text
    assert [token.token_id for token in tokens] == token_ids


def byte_offsets(
    detokenizer: LocatingDetokenizer, data: list[bytes], measure: Callable[[str], int] = len
) -> list[int]:
    _, tokens, _ = track(detokenizer, [list(range(len(data)))], measure)
    return [token.offset for token in tokens]


@pytest.mark.parametrize(
    ("data", "offsets"),
    [
        # One replacement character for each: stray bytes, and lead bytes that nothing follows.
        ([b"\xff", b"\x80", b"\xff", b"a"], [0, 1, 2, 3]),
        ([b"\xc3", b"\xc3", b"(", b"\xc3", b"\xe2", b"\xc3"], [0, 1, 2, 3, 4, 5]),
        ([b"a\xc3", b"\xc3b\xc3", b"c"], [0, 2, 5]),
        # One for all of a beginning of a character.
        ([b"\xf0", b"\x9f", b"\x98", b"a"], [0, 0, 0, 1]),
        ([b"\xf0\x9f", b"\x98", b"\xf0", b"\x9f"], [0, 0, 1, 1]),
        ([b"\xf0", b"\x9fa", b"b"], [0, 0, 2]),
        # One for each byte of what has all its bytes but is no character.
        ([b"\xed", b"\xa0", b"\x80", b"a"], [0, 1, 2, 3]),
        ([b"\xf4", b"\x90\x80", b"\x80a", b"b"], [0, 1, 3, 5]),
        # Whole characters, among them the replacement character itself.
        ([b"\xf0", b"\x9f", b"\x98", b"\x80", b"a"], [0, 0, 0, 0, 1]),
        ([b"\xef", b"\xbf", b"\xbd", b"a"], [0, 0, 0, 1]),
        ([b"\xff", b"\xc3", b"\xa9a", b"b"], [0, 1, 1, 3]),
        # Tokens without text.
        ([b"\xc3", b"", b"\xa9", b"", b"a"], [0, 0, 0, 1, 1]),
        ([b"\xc3", b"", b"a"], [0, 1, 1]),
        ([b"\xc3", b""], [0, 1]),
    ],
)
def test_offsets_after_invalid_bytes_count_replacement_characters(data, offsets):
    assert byte_offsets(table(data), data) == offsets


def text_before(data: bytes, position: int) -> str:
    """The characters that end before a byte. Where it is in the middle of one, the parts before
    and behind it make more characters than the whole."""
    text = decode_utf8(data, final=True).text
    while True:
        num_before = len(decode_utf8(data[:position], final=True).text)
        num_behind = len(decode_utf8(data[position:], final=True).text)
        if num_before + num_behind <= len(text):
            return text[: len(text) - num_behind]
        position -= 1


BYTES = st.sampled_from(
    [b"", b"a", b" b", *(bytes([byte]) for byte in b"\x80\x9f\xa0\xa9\xbd\xbf\xc0\xc3\xe2"),
     *(bytes([byte]) for byte in b"\xed\xef\xf0\xf4\xf8\xff"), "é".encode(), "€x".encode()]
) | st.binary(max_size=5)  # fmt: skip


@pytest.mark.slow
@given(
    data=st.lists(BYTES, max_size=14),
    cuts=st.lists(st.integers(0, 14), max_size=6),
    stop=st.lists(st.sampled_from(["a", "\ufffd", "\ufffda", "é", "\ufffd\ufffd"]), max_size=2),
    measure=st.sampled_from([len, utf8_length]),
)
def test_token_has_the_characters_that_it_ends(data, cuts, stop, measure):
    """Whatever bytes the tokens are of, however they come, and whichever stop string cuts them."""
    whole = b"".join(data)
    text, tokens, _ = track(table(data), [list(range(len(data)))], measure)
    assert text == decode_utf8(whole, final=True).text
    offsets = [token.offset for token in tokens]
    assert [token.token_id for token in tokens] == list(range(len(data)))
    assert offsets == sorted(offsets)
    units = text if measure is len else text.encode()
    parts = [units[start:end] for start, end in pairwise([*offsets, len(units)])]
    assert units[:0].join(parts) == units
    starts = accumulate(map(len, data[:-1]), initial=0) if data else ()
    assert offsets == [measure(text_before(whole, start)) for start in starts]

    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [list(range(start, end)) for start, end in pairwise(edges)]
    cut_text, cut_tokens, released = track(table(data), chunks, measure, tuple(stop))
    assert text.startswith(cut_text)
    assert cut_tokens == tokens[: len(cut_tokens)]
    length = 0
    for piece, piece_tokens in released:
        length += measure(piece)
        assert all(token.offset <= length for token in piece_tokens)
    if cut_text != text:
        assert len(cut_tokens) == sum(offset < measure(cut_text) for offset in offsets)


def window(data: list[bytes]) -> WindowDetokenizer:
    def decode(token_ids: list[int]) -> str:
        return decode_utf8(b"".join([data[token_id] for token_id in token_ids]), final=True).text

    return WindowDetokenizer(decode)


@pytest.mark.parametrize(
    ("data", "offsets"),
    [
        ([b"a", b"\xff", b"b", b"c"], [0, 1, 2, 3]),
        ([b"\xc3", b"\xffa", b"\xc3", b"b"], [0, 1, 3, 4]),
        # Of several in a row it is not known which byte made which character.
        ([b"a", b"\xff", b"\xff", b"\xff", b"b", b"c"], [0, 1, 1, 1, 4, 5]),
        ([b"\xff", b"\xf0", b"\x9f", b"\x98", b"\x80", b"a"], [0, 0, 0, 0, 1, 2]),
    ],
)
def test_offsets_in_a_window_after_invalid_bytes_are_approximate(data, offsets):
    assert byte_offsets(window(data), data) == offsets


def test_token_bytes_join_to_the_text_and_include_special_tokens(tokenizer: Tokenizer):
    token_ids = tokenizer.encode("small fox", add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, token_ids)).decode().strip() == "small fox"
    assert tokenizer.token_bytes(10**6) == b""
    special = min(tokenizer.special_token_ids)
    assert tokenizer.token_bytes(special) != b""
    name = tokenizer.token_bytes(special).decode()
    assert tokenizer.find_tokens([name, "no such token"]) == [special, None]
