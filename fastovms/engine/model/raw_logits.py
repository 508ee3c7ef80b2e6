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
