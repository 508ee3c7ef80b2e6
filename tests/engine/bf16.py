"""Logits in bfloat16."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.model.model import as_float32


def bf16_bits(logits: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Returns the bits of numbers truncated to bfloat16."""
    return (logits.view(np.uint32) >> 16).astype(np.uint16)


def as_bf16(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return as_float32(bf16_bits(logits))
