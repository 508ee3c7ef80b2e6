"""Makes a table with the bytes of every token, and checks it against the model's own
detokenizer."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fastovms.text.tokens.detokenizer import TableDetokenizer

MIN_NUM_SEQUENCES = 64
SEQUENCE_LENGTH = 64

PROBE_TEXTS = (
    "  two spaces before, two behind  ",
    " one before, one behind ",
    "He did n't , he 's , I 'm ; we 've . They 're ! Wo n't ? ' no '",
    "a  b   c\n\n d\t e ( f ) [ g ] : h ## i @@ j </w> k",
    "Grüße aus Köln, 東京 は 日本 の 首都 です 。 😀 👍🏽 мир !",
)
"""Texts that detokenizers with rules beyond the single token change: clean-up of spaces, suffixes
and prefixes of words. Random sequences seldom meet such a rule."""

_BYTE_TOKEN = re.compile(rb"<0x([0-9A-Fa-f]{2})>")

DecodeBatch = Callable[[list[list[int]], bool], list[str]]
"""Decodes several sequences of one length; the flag says whether special tokens are skipped."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """What each token contributes to the text.

    Attributes:
        token_bytes: the bytes of each id; empty where the vocabulary has a gap.
        special_token_ids: ids that contribute nothing when special tokens are skipped.
        strip_leading_space: whether one space is dropped from the beginning of a text.
    """

    token_bytes: Sequence[bytes]
    special_token_ids: frozenset[int]
    strip_leading_space: bool = False

    def skipping_special_tokens(self, keep: Collection[bytes] = ()) -> TokenTable:
        """Returns the table of texts without special tokens, those excepted that a text in `keep`
        is or begins with."""
        token_bytes = list(self.token_bytes)
        for token_id in self.special_token_ids:
            if not any(text.startswith(token_bytes[token_id]) for text in keep):
                token_bytes[token_id] = b""
        return replace(self, token_bytes=token_bytes)

    def detokenizer(self, *, continues: bool = False) -> TableDetokenizer:
        """Returns a detokenizer for one sample.

        Args:
            continues: whether the tokens go on with a text rather than begin one.
        """
        strip = self.strip_leading_space and not continues
        return TableDetokenizer(self.token_bytes, strip_leading_space=strip)

    def decode(self, token_ids: Sequence[int]) -> str:
        detokenizer = self.detokenizer()
        return detokenizer.push(token_ids) + detokenizer.flush()


def find_special_tokens(vocab_size: int, decode: DecodeBatch) -> frozenset[int]:
    """Returns the ids whose text disappears when special tokens are skipped."""
    texts = decode([[token_id] for token_id in range(vocab_size)], True)
    silent = [token_id for token_id, text in enumerate(texts) if not text]
    shown = decode([[token_id] for token_id in silent], False) if silent else []
    return frozenset(token_id for token_id, text in zip(silent, shown, strict=True) if text)


def build_token_table(
    vocab: Mapping[bytes, int],
    special_token_ids: frozenset[int],
    probes: Sequence[list[int]],
    decode: DecodeBatch,
) -> TokenTable | None:
    """Returns the table that gives the same texts as `decode`, or None if no known kind of
    vocabulary does.

    Every token is tried, in random sequences, where characters are torn apart and bytes are
    invalid, and so is each of the probes, the tokens of `PROBE_TEXTS`.
    """
    raw = [b""] * (max(vocab.values()) + 1)
    for data, token_id in vocab.items():
        raw[token_id] = data
    pieces = [_sentencepiece_bytes(data) for data in raw]
    samples = _samples([[token_ids] for token_ids in probes], decode)
    samples += _samples([_random_sequences(len(raw))], decode)
    for token_bytes, strip_leading_space in (
        (raw, False),  # byte-level BPE: the vocabulary holds the bytes themselves
        (pieces, True),  # Llama 2, Mistral 7B
        (pieces, False),  # Gemma
    ):
        table = TokenTable(token_bytes, special_token_ids, strip_leading_space)
        skipping = table.skipping_special_tokens()
        if all(
            table.decode(sample.token_ids) == sample.text
            and skipping.decode(sample.token_ids) == sample.text_without_special_tokens
            for sample in samples
        ):
            return table
    return None


def _sentencepiece_bytes(piece: bytes) -> bytes:
    """Returns the bytes of a piece: byte tokens stand for one byte, U+2581 for a space."""
    if match := _BYTE_TOKEN.fullmatch(piece):
        return bytes.fromhex(match[1].decode())
    return piece.replace("\N{LOWER ONE EIGHTH BLOCK}".encode(), b" ")


class _DecodedText(NamedTuple):
    token_ids: list[int]
    text: str
    text_without_special_tokens: str


def _samples(batches: list[list[list[int]]], decode: DecodeBatch) -> list[_DecodedText]:
    return [
        _DecodedText(*sample)
        for batch in batches
        for sample in zip(batch, decode(batch, False), decode(batch, True), strict=True)
    ]


def _random_sequences(vocab_size: int) -> list[list[int]]:
    """Returns sequences of one length that have every token in them."""
    rng = random.Random(0)
    vocab = range(vocab_size)
    num_sequences = max(MIN_NUM_SEQUENCES, math.ceil(vocab_size / SEQUENCE_LENGTH))
    token_ids = rng.sample(vocab, k=vocab_size)
    token_ids += rng.choices(vocab, k=num_sequences * SEQUENCE_LENGTH - vocab_size)
    return [
        token_ids[start : start + SEQUENCE_LENGTH]
        for start in range(0, len(token_ids), SEQUENCE_LENGTH)
    ]
