"""Adds to a graph what makes one vector, or one row of logits, of the states of all tokens."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from openvino import opset13 as ops

from fastovms.encoding import Pooling

_SMALLEST: Final = 1e-12
"""The least that is divided by."""

Value = Any
"""An output of a node: OpenVINO's types are no part of its stubs."""


def pooled(states: Value, attention_mask: Value, pooling: Pooling) -> Value:
    """Returns one state of each text: f32 [B, H].

    Args:
        states: f32 [B, T, H].
        attention_mask: i64 [B, T]; 0 = padding, which is at the end.
    """
    if pooling is Pooling.MEAN:
        weights = ops.unsqueeze(ops.convert(attention_mask, np.float32), _indices(-1))
        total = ops.reduce_sum(ops.multiply(states, weights), _indices(1), False)
        count = ops.reduce_sum(weights, _indices(1), False)
        return ops.divide(total, ops.maximum(count, ops.constant(np.float32(_SMALLEST)))).output(0)
    if pooling is Pooling.CLS:
        return ops.gather(states, ops.constant(np.int64(0)), ops.constant(np.int64(1))).output(0)
    return last_of(states, attention_mask)


def last_of(states: Value, attention_mask: Value) -> Value:
    """Returns the state of each text's last token."""
    length = ops.reduce_sum(attention_mask, _indices(1), False)
    last = ops.subtract(length, ops.constant(np.int64(1)))
    return ops.gather(states, last, ops.constant(np.int64(1)), batch_dims=1).output(0)


def _indices(*values: int) -> Value:
    return ops.constant(np.array(values, np.int64))
