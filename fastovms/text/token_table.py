"""The bytes of every token, from the vocabulary, checked against the model's own detokenizer."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fastovms.text.detokenizer import TableDetokenizer

MIN_NUM_SAMPLES = 64
SAMPLE_LENGTH = 64

_BYTE_TOKEN = re.compile(rb"<0x([0-9A-Fa-f]{2})>")

DecodeBatch = Callable[[list[list[int]], bool], list[str]]
"""Decodes several sequences of one length; the flag says whether special tokens are skipped."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """What each token contributes to the text.

    Attributes:
        token_bytes: by id; empty where the vocabulary has a gap.
        special_token_ids: ids that contribute nothing when special tokens are skipped.
        strip_leading_space: one space is dropped from the beginning of a text.
    """

    token_bytes: Sequence[bytes]
    special_token_ids: frozenset[int]
    strip_leading_space: bool = False

    def skipping_special_tokens(self) -> TokenTable:
        """The table of texts without special tokens."""
        special = self.special_token_ids
        token_bytes = [
            b"" if token_id in special else data for token_id, data in enumerate(self.token_bytes)
        ]
        return replace(self, token_bytes=token_bytes)

    def detokenizer(self) -> TableDetokenizer:
        return TableDetokenizer(self.token_bytes, strip_leading_space=self.strip_leading_space)

    def decode(self, token_ids: Sequence[int]) -> str:
        detokenizer = self.detokenizer()
        return detokenizer.push(token_ids) + detokenizer.flush()


def find_special_tokens(vocab_size: int, decode: DecodeBatch) -> frozenset[int]:
    """Ids whose text disappears when special tokens are skipped."""
    texts = decode([[token_id] for token_id in range(vocab_size)], True)
    silent = [token_id for token_id, text in enumerate(texts) if not text]
    shown = decode([[token_id] for token_id in silent], False) if silent else []
    return frozenset(token_id for token_id, text in zip(silent, shown, strict=True) if text)


def build_token_table(
    vocab: Mapping[bytes, int], special_token_ids: frozenset[int], decode: DecodeBatch
) -> TokenTable | None:
    """The table that gives the same texts as `decode`, or None if no known shape does.

    Every token is tried, in random sequences, where characters are torn apart and bytes are
    invalid.
    """
    raw = [b""] * (max(vocab.values()) + 1)
    for data, token_id in vocab.items():
        raw[token_id] = data
    pieces = [_sentencepiece_bytes(data) for data in raw]
    samples = _samples(len(raw), decode)
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
    """Byte tokens stand for one byte, U+2581 for a space."""
    if match := _BYTE_TOKEN.fullmatch(piece):
        return bytes.fromhex(match[1].decode())
    return piece.replace("\N{LOWER ONE EIGHTH BLOCK}".encode(), b" ")


class _Sample(NamedTuple):
    token_ids: list[int]
    text: str
    text_without_special_tokens: str


def _samples(vocab_size: int, decode: DecodeBatch) -> list[_Sample]:
    rng = random.Random(0)
    vocab = range(vocab_size)
    num_samples = max(MIN_NUM_SAMPLES, math.ceil(vocab_size / SAMPLE_LENGTH))
    token_ids = rng.sample(vocab, k=vocab_size)
    token_ids += rng.choices(vocab, k=num_samples * SAMPLE_LENGTH - vocab_size)
    rows = [
        token_ids[start : start + SAMPLE_LENGTH]
        for start in range(0, len(token_ids), SAMPLE_LENGTH)
    ]
    return [
        _Sample(*sample)
        for sample in zip(rows, decode(rows, False), decode(rows, True), strict=True)
    ]
