"""A mixture of experts in the form that OpenVINO's conversion gives exports of Qwen3-MoE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openvino import opset13 as ops

from bench.random_models.nodes import dimension, index, real

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""


def mixture(hidden: Node, router: Node, experts: Sequence[Node], num_chosen: int) -> Node:
    """Returns the mixture of each token's likeliest experts: [B, Q, size].

    Args:
        hidden: [B, Q, size].
        router: the matrix that gives the experts' scores, [experts, size].
        experts: the matrices of gates, [experts, inner, size], of what they multiply, of the same
            shape, and of the results, [experts, size, inner].
    """
    gate, up, down = experts
    num_experts, _, size = gate.get_output_shape(0)
    rows = ops.reshape(hidden, index([-1, size]), False)
    shares = ops.softmax(ops.matmul(rows, router, False, True), 1)
    best = ops.topk(shares, index(num_chosen), -1, "max", "value", "i64")
    values, numbers = best.outputs()
    values = ops.divide(values, ops.reduce_sum(values, index([-1]), True))
    num_rows, all_experts = dimension(numbers, [0]), index([num_experts])

    tiled = ops.tile(rows, index([num_experts, 1]))
    shape = ops.concat([all_experts, num_rows, index([size])], 0)
    tiled = ops.reshape(tiled, shape, False)
    gated = ops.swish(ops.matmul(tiled, gate, False, True))
    inner = ops.multiply(gated, ops.matmul(tiled, up, False, True))
    shape = ops.concat([all_experts, num_rows, index([-1]), index([size])], 0)
    results = ops.reshape(ops.matmul(inner, down, False, True), shape, False)

    zeros = ops.broadcast(real(0.0), ops.concat([num_rows, all_experts], 0))
    factors = ops.scatter_elements_update(zeros, numbers, values, index([1]))
    shape = ops.concat([all_experts, num_rows, index([-1])], 0)
    factors = ops.reshape(ops.transpose(factors, index([1, 0])), shape, True)
    weighted = ops.multiply(results, ops.unsqueeze(factors, index([-1])))
    total = ops.reduce_sum(weighted, index([0]), False)
    return ops.reshape(total, ops.shape_of(hidden), False)
