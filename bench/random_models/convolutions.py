"""The short convolution of LFM 2, in the form that OpenVINO's conversion gives exports of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from openvino import opset13 as ops

from bench.random_models.nodes import dimension, index, real

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""


def short_convolution(
    hidden: Node, joined: Node, weights: NDArray[np.float32], beam_idx: Node, number: int
) -> tuple[Node, Node]:
    """Returns `c * convolution(b * x)`, [B, size, Q], and the node that stores the state.

    Args:
        hidden: [B, Q, size].
        joined: b, c and x one after another, [B, Q, 3 * size].
        weights: [size, tokens].
        number: of the convolution among those of the model.
    """
    size, num_tokens = weights.shape
    columns = ops.transpose(joined, index([0, 2, 1]))
    b, c, x = ops.variadic_split(columns, index(-2), index([size, size, size])).outputs()
    empty = ops.broadcast(
        real(0.0), ops.concat([dimension(hidden, [0]), index([size, num_tokens])], 0)
    )
    variable = f"cache_params.past.conv.{number}cache_params.present.conv.{number}"
    stored = ops.read_value(empty, variable, np.float32, [-1, size, num_tokens])
    past = ops.gather(stored, beam_idx, index(0))
    text = ops.concat([past, ops.multiply(b, x)], -1)
    start, end, step, axis = index([-num_tokens]), index([np.iinfo(np.int64).max]), 1, 2
    state = ops.slice(text, start, end, index([step]), index([axis]))
    filters = ops.constant(weights.reshape(size, 1, 1, num_tokens))
    convolved = ops.group_convolution(text, filters, [1], [0], [0], [1])
    convolved.set_friendly_name(f"{number}.conv/aten::_convolution/GroupConvolution")
    start = ops.multiply(dimension(hidden, [1]), index(-1))
    convolved = ops.slice(convolved, start, end, index([step]), index([axis]))
    return ops.multiply(c, convolved), ops.assign(state, variable)
