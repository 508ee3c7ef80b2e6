"""Logits as a model computes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

RawLogits = NDArray[np.float32] | NDArray[np.uint16]
"""[rows, vocab_size], or one row. uint16: the bits of bfloat16, which numpy has no type for. They
are the upper half of the same number's bits in float32."""


def as_float32(logits: RawLogits) -> Floats:
    """The same numbers: the same array, if it is one of float32."""
    if logits.dtype == np.float32:
        return logits.view(np.float32)
    copy = np.empty(logits.shape, np.float32)
    copy_float32(logits, copy)
    return copy


def copy_float32(logits: RawLogits, target: Floats) -> None:
    """Of the same shape."""
    if logits.dtype == np.float32:
        target[:] = logits
    else:
        bits = target.view(np.uint32)
        bits[...] = logits
        bits <<= 16


def as_bits(logits: RawLogits) -> tuple[NDArray[np.int32] | NDArray[np.int16], np.int32]:
    """As `kernels` takes them: the same memory, and how many bits short of float32 it is."""
    if logits.dtype == np.float32:
        return logits.view(np.int32), np.int32(0)
    return logits.view(np.int16), np.int32(16)


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
