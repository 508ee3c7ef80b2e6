"""Logits as a model computes them, and the first look at them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

RawLogits = NDArray[np.float32] | NDArray[np.uint16]
"""[rows, vocab_size], or one row. uint16: the bits of bfloat16, which numpy has no type for. They
are the upper half of the same number's bits in float32."""

_CHUNK_BYTES = 1024 * 1024
"""Of logits that are looked through ahead: they shall be in a cache when their tokens are chosen.
"""


def as_float32(logits: RawLogits) -> Floats:
    """The same numbers: the same array, if it is one of float32."""
    if logits.dtype == np.float32:
        return logits.view(np.float32)
    bits = logits.astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def likeliest(logits: RawLogits) -> list[int]:
    """The first of the largest logits of each row.

    The bits of non-negative floats order as integers do, whose argmax numpy finds in half the
    time (it has no NaN to look out for). A row without a non-negative logit is done again.
    """
    bits = logits.view(np.int32 if logits.dtype == np.float32 else np.int16)
    token_ids: list[int] = bits.argmax(axis=1).tolist()
    for row, token_id in enumerate(token_ids):
        if bits[row, token_id] < 0:
            token_ids[row] = int(as_float32(logits[row]).argmax())
    return token_ids


def each_likeliest(logits: RawLogits) -> Iterator[int]:
    """As `likeliest`, a few rows ahead of those that are taken."""
    num_rows = max(1, _CHUNK_BYTES // (logits.itemsize * logits.shape[1]))
    for start in range(0, len(logits), num_rows):
        yield from likeliest(logits[start : start + num_rows])
