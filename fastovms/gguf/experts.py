"""Builds mixtures of experts as exports have them, which OpenVINO and the decode kernels
recognize."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from openvino import opset13

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""


class Experts(NamedTuple):
    """The weights of a layer's experts, as nodes.

    Attributes:
        router: gives the scores of experts, [experts, size].
        gate, up: [experts, inner, size].
        down: [experts, size, inner].
    """

    router: Node
    gate: Node
    up: Node
    down: Node


def mixture(hidden: Node, experts: Experts, num_chosen: int, *, is_normalized: bool) -> Node:
    """Returns the sum of what each token's likeliest experts give, [batch, tokens, size].

    Args:
        hidden: [batch, tokens, size].
        num_chosen: the number of experts that a token takes.
        is_normalized: whether the factors of these are made to add up to 1.
    """
    num_experts, _, size = experts.gate.get_output_shape(0)
    rows = opset13.reshape(hidden, _index([-1, size]), False)
    shares = opset13.softmax(opset13.matmul(rows, experts.router, False, True), 1)
    best = opset13.topk(shares, _index(num_chosen), -1, "max", "value", "i64")
    values, numbers = best.outputs()
    if is_normalized:
        values = opset13.divide(values, opset13.reduce_sum(values, _index([-1]), True))
    num_rows = opset13.gather(opset13.shape_of(numbers), _index([0]), _index(0))
    count = _index([num_experts])

    tiled = opset13.tile(rows, _index([num_experts, 1]))
    shape = opset13.concat([count, num_rows, _index([size])], 0)
    tiled = opset13.reshape(tiled, shape, False)
    gated = opset13.swish(opset13.matmul(tiled, experts.gate, False, True))
    inner = opset13.multiply(gated, opset13.matmul(tiled, experts.up, False, True))
    shape = opset13.concat([count, num_rows, _index([-1]), _index([size])], 0)
    results = opset13.reshape(opset13.matmul(inner, experts.down, False, True), shape, False)

    zero = opset13.constant(np.array(0, np.float32))
    zeros = opset13.broadcast(zero, opset13.concat([num_rows, count], 0))
    factors = opset13.scatter_elements_update(zeros, numbers, values, _index([1]))
    shape = opset13.concat([count, num_rows, _index([-1])], 0)
    factors = opset13.reshape(opset13.transpose(factors, _index([1, 0])), shape, True)
    weighted = opset13.multiply(results, opset13.unsqueeze(factors, _index([-1])))
    total = opset13.reduce_sum(weighted, _index([0]), False)
    return opset13.reshape(total, opset13.shape_of(hidden), False)


def _index(value: int | list[int]) -> Node:
    return opset13.constant(np.array(value, np.int64))
