"""Builds mixture-of-experts layers in the pattern of optimum-intel's exports, which OpenVINO and
the decode kernels recognize."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from openvino import opset13

from fastovms.gguf.nodes import Node, dimension, index, number


class Experts(NamedTuple):
    """The weights of a layer's experts, as nodes.

    Attributes:
        router: the router's matrix, [experts, size].
        gate, up: [experts, inner, size].
        down: [experts, size, inner].
        biases: the biases of these four, [experts, 1] or [experts, 1, rows], as in gpt-oss; empty =
            none, as in Qwen3-MoE.
        rank_bias: is added to the routing weights for the choice only, [1, experts]; None = none.
    """

    router: Node
    gate: Node
    up: Node
    down: Node
    biases: tuple[NDArray[np.float32], ...] = ()
    rank_bias: NDArray[np.float32] | None = None


_EPSILON: Final = 1e-6
"""Is added to the sum of LFM 2's shares."""

_LIMIT: Final = 7.0
_STEEPNESS: Final = 1.702
"""The factor of the sigmoid's input in gpt-oss's activation."""


def mixture(
    hidden: Node,
    experts: Experts,
    num_chosen: int,
    *,
    is_normalized: bool,
    is_sigmoid: bool = False,
) -> Node:
    """Returns the output of a mixture-of-experts layer, [batch, tokens, size].

    Args:
        hidden: [batch, tokens, size].
        num_chosen: the number of experts per token.
        is_normalized: whether the routing weights of the chosen experts are normalized to sum 1.
        is_sigmoid: whether routing weights are the sigmoid of scores, as in LFM 2; otherwise their
            softmax.
    """
    num_experts, _, size = experts.gate.get_output_shape(0)
    rows = opset13.reshape(hidden, index([-1, size]), False)
    shares = opset13.matmul(rows, experts.router, False, True)
    if experts.biases:
        shares = opset13.add(shares, opset13.constant(experts.biases[0].reshape(1, -1)))
    else:
        shares = opset13.sigmoid(shares) if is_sigmoid else opset13.softmax(shares, 1)
    ranks = shares
    if experts.rank_bias is not None:
        ranks = opset13.add(shares, opset13.constant(experts.rank_bias))
    best = opset13.topk(ranks, index(num_chosen), -1, "max", "value", "i64")
    values, numbers = best.outputs()
    if experts.rank_bias is not None:
        values = opset13.gather_elements(shares, numbers, 1)
    if experts.biases:
        values = opset13.softmax(values, -1)
    elif is_normalized:
        total = opset13.reduce_sum(values, index([-1]), True)
        total = opset13.add(total, number(_EPSILON)) if is_sigmoid else total
        values = opset13.divide(values, total)
    num_rows = dimension(numbers, 0)
    count = index([num_experts])

    tiled = opset13.tile(rows, index([num_experts, 1]))
    shape = opset13.concat([count, num_rows, index([size])], 0)
    tiled = opset13.reshape(tiled, shape, False)
    gate = opset13.matmul(tiled, experts.gate, False, True)
    up = opset13.matmul(tiled, experts.up, False, True)
    if experts.biases:
        gate = opset13.minimum(
            opset13.add(gate, opset13.constant(experts.biases[1])), number(_LIMIT)
        )
        up = opset13.add(up, opset13.constant(experts.biases[2]))
        up = opset13.add(opset13.clamp(up, -_LIMIT, _LIMIT), number(1))
        gated = opset13.multiply(gate, opset13.sigmoid(opset13.multiply(gate, number(_STEEPNESS))))
    else:
        gated = opset13.swish(gate)
    inner = opset13.multiply(gated, up)
    shape = opset13.concat([count, num_rows, index([-1]), index([size])], 0)
    results = opset13.matmul(inner, experts.down, False, True)
    if experts.biases:
        results = opset13.add(results, opset13.constant(experts.biases[3]))
    results = opset13.reshape(results, shape, False)

    zeros = opset13.broadcast(number(0), opset13.concat([num_rows, count], 0))
    factors = opset13.scatter_elements_update(zeros, numbers, values, index([1]))
    shape = opset13.concat([count, num_rows, index([-1])], 0)
    factors = opset13.reshape(opset13.transpose(factors, index([1, 0])), shape, True)
    weighted = opset13.multiply(results, opset13.unsqueeze(factors, index([-1])))
    total = opset13.reduce_sum(weighted, index([0]), False)
    return opset13.reshape(total, opset13.shape_of(hidden), False)
