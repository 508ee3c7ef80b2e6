"""A table of tokens gives what the model's own detokenizer gives, or there is none."""

from __future__ import annotations

import pytest

from fastovms.text.tokens.detokenizer import (
    TableDetokenizer,
)
from fastovms.text.tokens.token_table import (
    DecodeBatch,
    TokenTable,
    build_token_table,
    find_special_tokens,
)


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
def test_known_vocabularies_are_decoded_from_the_table(
    name: str, request: pytest.FixtureRequest
) -> None:
    assert isinstance(request.getfixturevalue(name).detokenizer(), TableDetokenizer)


VOCAB = [b"a", b"\xe2\x96\x81b", b"<0x0A>", b"<s>"]


def decoder(*texts: str, special: int | None = None, strip: bool = False) -> DecodeBatch:
    """Joins texts of tokens."""

    def decode(batch: list[list[int]], skips: bool) -> list[str]:
        found = []
        for token_ids in batch:
            kept = [token_id for token_id in token_ids if not (skips and token_id == special)]
            joined = "".join(texts[token_id] for token_id in kept)
            found.append(joined.removeprefix(" ") if strip else joined)
        return found

    return decode


@pytest.mark.parametrize(
    ("decode", "token_bytes", "strips"),
    [
        (decoder("a", "\u2581b", "<0x0A>", "<s>", special=3), VOCAB, False),
        (decoder("a", " b", "\n", "<s>", special=3), [b"a", b" b", b"\n", b"<s>"], False),
        (decoder("a", " b", "\n", "<s>", special=3, strip=True), [b"a", b" b", b"\n", b"<s>"],
         True),
    ],
)  # fmt: skip
def test_kinds_of_vocabularies(decode: DecodeBatch, token_bytes: list[bytes], strips: bool) -> None:
    vocab = {data: token_id for token_id, data in enumerate(VOCAB)}
    special = find_special_tokens(len(VOCAB), decode)
    assert special == {3}
    table = build_token_table(vocab, special, [[0, 1]], decode)
    assert table is not None
    assert (list(table.token_bytes), table.strip_leading_space) == (token_bytes, strips)
    assert table.skipping_special_tokens().decode([3, 0, 3]) == "a"
    assert table.skipping_special_tokens([b"<s>"]).decode([3, 0]) == "<s>a"


def test_a_detokenizer_with_rules_of_its_own_has_no_table() -> None:
    plain = decoder("a", "b")

    def cleans_up(batch: list[list[int]], skips: bool) -> list[str]:
        return [text.replace("ab", "x") for text in plain(batch, skips)]

    vocab = {b"a": 0, b"b": 1}
    assert build_token_table(vocab, frozenset(), [], plain) is not None
    assert build_token_table(vocab, frozenset(), [], cleans_up) is None


def test_a_table_has_nothing_where_the_vocabulary_has_gaps() -> None:
    table = build_token_table({b"b": 2}, frozenset(), [], decoder("", "", "b"))
    assert table is not None
    assert list(table.token_bytes) == [b"", b"", b"b"]


def test_only_a_text_that_begins_loses_its_space() -> None:
    table = TokenTable([b" a"], frozenset(), strip_leading_space=True)
    assert table.decode([0, 0]) == "a a"
    assert table.detokenizer(continues=True).push([0]) == " a"
