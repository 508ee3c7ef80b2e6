"""Builds mixture-of-experts layers and short convolutions in the patterns of optimum-intel's
exports, which OpenVINO and the decode kernels recognize."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from openvino import opset13

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""


class Experts(NamedTuple):
    """The weights of a layer's experts, as nodes.

    Attributes:
        router: the router's matrix, [experts, size].
        gate, up: [experts, inner, size].
        down: [experts, size, inner].
        biases: the biases of these four, [experts, 1] or [experts, 1, rows], as in gpt-oss; empty =
            none, as in Qwen3-MoE.
    """

    router: Node
    gate: Node
    up: Node
    down: Node
    biases: tuple[NDArray[np.float32], ...] = ()


_LIMIT: Final = 7.0
_STEEPNESS: Final = 1.702
"""The factor of the sigmoid's input in gpt-oss's activation."""


def mixture(hidden: Node, experts: Experts, num_chosen: int, *, is_normalized: bool) -> Node:
    """Returns the output of a mixture-of-experts layer, [batch, tokens, size].

    Args:
        hidden: [batch, tokens, size].
        num_chosen: the number of experts per token.
        is_normalized: whether the routing weights of the chosen experts are normalized to sum 1.
    """
    num_experts, _, size = experts.gate.get_output_shape(0)
    rows = opset13.reshape(hidden, _index([-1, size]), False)
    shares = opset13.matmul(rows, experts.router, False, True)
    if experts.biases:
        shares = opset13.add(shares, opset13.constant(experts.biases[0].reshape(1, -1)))
    else:
        shares = opset13.softmax(shares, 1)
    best = opset13.topk(shares, _index(num_chosen), -1, "max", "value", "i64")
    values, numbers = best.outputs()
    if experts.biases:
        values = opset13.softmax(values, -1)
    elif is_normalized:
        values = opset13.divide(values, opset13.reduce_sum(values, _index([-1]), True))
    num_rows = _dimension(numbers, 0)
    count = _index([num_experts])

    tiled = opset13.tile(rows, _index([num_experts, 1]))
    shape = opset13.concat([count, num_rows, _index([size])], 0)
    tiled = opset13.reshape(tiled, shape, False)
    gate = opset13.matmul(tiled, experts.gate, False, True)
    up = opset13.matmul(tiled, experts.up, False, True)
    if experts.biases:
        gate = opset13.minimum(opset13.add(gate, opset13.constant(experts.biases[1])), _f32(_LIMIT))
        up = opset13.add(up, opset13.constant(experts.biases[2]))
        up = opset13.add(opset13.clamp(up, -_LIMIT, _LIMIT), _f32(1))
        gated = opset13.multiply(gate, opset13.sigmoid(opset13.multiply(gate, _f32(_STEEPNESS))))
    else:
        gated = opset13.swish(gate)
    inner = opset13.multiply(gated, up)
    shape = opset13.concat([count, num_rows, _index([-1]), _index([size])], 0)
    results = opset13.matmul(inner, experts.down, False, True)
    if experts.biases:
        results = opset13.add(results, opset13.constant(experts.biases[3]))
    results = opset13.reshape(results, shape, False)

    zeros = opset13.broadcast(_f32(0), opset13.concat([num_rows, count], 0))
    factors = opset13.scatter_elements_update(zeros, numbers, values, _index([1]))
    shape = opset13.concat([count, num_rows, _index([-1])], 0)
    factors = opset13.reshape(opset13.transpose(factors, _index([1, 0])), shape, True)
    weighted = opset13.multiply(results, opset13.unsqueeze(factors, _index([-1])))
    total = opset13.reduce_sum(weighted, _index([0]), False)
    return opset13.reshape(total, opset13.shape_of(hidden), False)


def short_convolution(
    joined: Node, weights: NDArray[np.float32], beams: Node, number: int
) -> tuple[Node, Node]:
    """Returns `c * convolution(b * x)`, [batch, size, tokens], and the node that stores the state:
    the last columns of `b * x`.

    Args:
        joined: b, c and x, concatenated: [batch, tokens, 3 * size].
        weights: the weights of the last columns, [size, columns].
        beams: the indices of the states that the batch's rows continue, [batch].
        number: the index of this convolution among those of the model.
    """
    size, num_columns = weights.shape
    columns = opset13.transpose(joined, _index([0, 2, 1]))
    b, c, x = opset13.variadic_split(columns, _index(-2), _index([size, size, size])).outputs()
    shape = opset13.concat([_dimension(joined, 0), _index([size, num_columns])], 0)
    empty = opset13.broadcast(_f32(0), shape)
    variable = f"cache_params.past.conv.{number}cache_params.present.conv.{number}"
    stored = opset13.read_value(empty, variable, np.float32, [-1, size, num_columns])
    past = opset13.gather(stored, beams, _index(0))
    text = opset13.concat([past, opset13.multiply(b, x)], -1)
    end, one, axis = _index([np.iinfo(np.int64).max]), _index([1]), _index([2])
    state = opset13.slice(text, _index([-num_columns]), end, one, axis)
    filters = opset13.constant(weights.reshape(size, 1, 1, num_columns))
    convolved = opset13.group_convolution(text, filters, [1], [0], [0], [1])
    convolved.set_friendly_name(f"{number}.conv/aten::_convolution/GroupConvolution")
    start = opset13.multiply(_dimension(joined, 1), _index(-1))
    convolved = opset13.slice(convolved, start, end, one, axis)
    return opset13.multiply(c, convolved), opset13.assign(state, variable)


def _dimension(node: Node, axis: int) -> Node:
    return opset13.gather(opset13.shape_of(node), _index([axis]), _index(0))


def _f32(value: float) -> Node:
    return opset13.constant(np.array(value, np.float32))


def _index(value: int | list[int]) -> Node:
    return opset13.constant(np.array(value, np.int64))
