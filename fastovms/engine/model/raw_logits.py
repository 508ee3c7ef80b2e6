"""Converts the logits that a model gives, float32 or bfloat16, into float32 or into bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

RawLogits = NDArray[np.float32] | NDArray[np.uint16]
"""Logits of several positions, [rows, vocab_size], or of one, [vocab_size]; float32, or uint16 for
the bits of bfloat16, which numpy has no type for. These are the upper half of the same number's
bits in float32."""


Bits = NDArray[np.int32] | NDArray[np.int16]
"""The bits of logits, [rows, vocab_size] or [vocab_size]."""


def as_float32(logits: RawLogits) -> Floats:
    """Returns the same numbers as float32, without a copy if they are float32 already."""
    if logits.dtype == np.float32:
        return logits.view(np.float32)
    copy = np.empty(logits.shape, np.float32)
    copy_float32(logits, copy)
    return copy


def copy_float32(logits: RawLogits, target: Floats) -> None:
    """Copies the numbers into a float32 array of the same shape."""
    if logits.dtype == np.float32:
        target[:] = logits
    else:
        bits = target.view(np.uint32)
        bits[...] = logits
        bits <<= 16


def as_bits(logits: RawLogits) -> tuple[Bits, np.int32]:
    """Returns the same memory as bits, as `kernels` takes them, and by how many bits each is to be
    shifted to be a float32."""
    if logits.dtype == np.float32:
        return logits.view(np.int32), np.int32(0)
    return logits.view(np.int16), np.int32(16)
