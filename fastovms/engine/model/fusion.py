"""Fuses an attention layer's query, key and value projections into one matrix multiplication.

All three multiply the same hidden states by different weights. One multiplication gives the same
results, but starts the threads once and quantizes the activations once. (The two projections of a
gated MLP would gain less, and lose OpenVINO's fused activation function.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13

from fastovms.engine.model.graph_walk import inputs_of, reached

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""

_ATTENTION = "PagedAttentionExtension"
_NUM_PROJECTIONS = 3
"""The number of projections; their results are the first inputs of an attention node."""

_DECOMPRESSION = frozenset({"Convert", "Multiply", "Reshape", "Subtract"})
_TIMES_TRANSPOSED = {"transpose_a": False, "transpose_b": True}

_WIDTH_AXIS_OF_WEIGHTS = -2
_WIDTH_AXIS_OF_BIAS = -1
"""The axis along which biases are stacked, counted from the last one, as constants are
broadcast."""


def fuse_projections(model: ov.Model) -> list[tuple[str, ...]]:
    """Rewrites a paged model in place. Returns the names of the fused MatMul nodes of each changed
    layer; the first one now computes all projections. Layers whose projections differ (only one has
    a bias or an adapter, or they are already fused) are not changed."""
    layers = [node for node in model.get_ordered_ops() if node.get_type_name() == _ATTENTION]
    fused = [names for names in map(_fuse, layers) if names]
    if fused:
        model.validate_nodes_and_infer_types()
    return fused


class _Projection(NamedTuple):
    """One of the three multiplications by weights.

    Attributes:
        matmul: the MatMul node; its second input is the weights, [width, hidden size].
        bias: the Add node after it; None = no bias.
        width: the number of values per token.
    """

    matmul: Node
    bias: Node | None
    width: int

    @property
    def result(self) -> Node:
        return self.bias or self.matmul


class _Replacement(NamedTuple):
    """A constant that replaces an input of a node."""

    consumer: Node
    position: int
    constant: Node


class _NotFusible(Exception):
    """The projections of this layer cannot be fused."""


def _fuse(attention: Node) -> tuple[str, ...]:
    """Returns the names of the fused MatMul nodes; empty if none were fused."""
    try:
        projections = [
            _following_projection(attention.input_value(index).get_node())
            for index in range(_NUM_PROJECTIONS)
        ]
        replacements = _stack_projections(projections)
    except _NotFusible:
        return ()
    targets = [list(projection.result.output(0).get_target_inputs()) for projection in projections]
    for consumer, position, constant in replacements:
        consumer.input(position).replace_source_output(constant.output(0))
    _infer_shapes(projections[0].result)
    parts = opset13.variadic_split(
        projections[0].result,
        opset13.constant(-1, np.int64),
        opset13.constant([projection.width for projection in projections], np.int64),
    )
    for part, inputs in zip(parts.outputs(), targets, strict=True):
        for target in inputs:
            target.replace_source_output(part)
    return tuple(projection.matmul.get_friendly_name() for projection in projections)


def _following_projection(node: Node) -> _Projection:
    """Returns the only multiplication by weights on the paths to `node`. Raises _NotFusible if
    there is none, more than one, or one of an unsupported form."""
    nodes = reached([node], lambda node: [] if _multiplies_weights(node) else inputs_of(node))
    matmuls = list(filter(_multiplies_weights, nodes))
    if len(matmuls) != 1 or matmuls[0].get_attributes() != _TIMES_TRANSPOSED:
        raise _NotFusible
    shape = matmuls[0].get_input_partial_shape(1)
    if shape.is_dynamic or len(shape) != 2:
        raise _NotFusible
    return _Projection(matmuls[0], _bias_after(matmuls[0]), shape[0].get_length())


def _multiplies_weights(node: Node) -> bool:
    return node.get_type_name() == "MatMul" and _is_constant(node.input_value(1).get_node())


def _bias_after(matmul: Node) -> Node | None:
    consumers = [target.get_node() for target in matmul.output(0).get_target_inputs()]
    if len(consumers) != 1 or consumers[0].get_type_name() != "Add":
        return None
    return consumers[0] if _is_constant(consumers[0].input_value(1).get_node()) else None


def _infer_shapes(projection: Node) -> None:
    """Recomputes the shapes of a projection's nodes, the weights first."""
    for value in projection.input_values():
        node = value.get_node()
        if node.get_type_name() == "MatMul" or _is_constant(node):
            _infer_shapes(node)
    projection.validate_and_infer_types()


def _is_constant(node: Node) -> bool:
    """Returns whether a node is a constant, compressed or not."""
    while node.get_type_name() in _DECOMPRESSION:
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Constant")


def _stack_projections(projections: Sequence[_Projection]) -> list[_Replacement]:
    """Returns the replacements that give the first projection the stacked weights of all."""
    matmuls = [projection.matmul for projection in projections]
    biases = [projection.bias for projection in projections]
    sources = [matmul.input_value(0) for matmul in matmuls]
    inputs = {(source.get_node().get_instance_id(), source.get_index()) for source in sources}
    if len(inputs) != 1 or len({matmul.get_instance_id() for matmul in matmuls}) != len(matmuls):
        raise _NotFusible
    widths = [projection.width for projection in projections]
    weights = _stack(matmuls, 1, widths, _WIDTH_AXIS_OF_WEIGHTS)
    if not any(biases):
        return weights
    if not all(biases):
        raise _NotFusible
    return weights + _stack(biases, 1, widths, _WIDTH_AXIS_OF_BIAS)


def _stack(
    consumers: Sequence[Node], index: int, widths: Sequence[int], axis: int
) -> list[_Replacement]:
    """Stacks the constants at input `index` of all consumers, and returns the replacements that
    give the result to the first consumer. `widths` has the length of each constant on `axis`."""
    nodes = [consumer.input_value(index).get_node() for consumer in consumers]
    kinds = {node.get_type_name() for node in nodes}
    if kinds == {"Constant"}:
        return [_Replacement(consumers[0], index, _stack_constants(nodes, widths, axis))]
    if len(kinds) != 1 or not kinds <= _DECOMPRESSION:
        raise _NotFusible
    if len(nodes[0].output(0).get_target_inputs()) != 1:  # layers share their weights
        raise _NotFusible
    if any(node.get_attributes() != nodes[0].get_attributes() for node in nodes):
        raise _NotFusible
    if kinds == {"Reshape"}:
        first = _Replacement(nodes[0], 1, _stack_shapes(nodes, widths))
        return [first, *_stack(nodes, 0, widths, -len(nodes[0].get_input_shape(0)))]
    return [r for i in range(nodes[0].get_input_size()) for r in _stack(nodes, i, widths, axis)]


def _stack_constants(constants: Sequence[Node], widths: Sequence[int], axis: int) -> Node:
    dtype, shape = constants[0].get_element_type(), list(constants[0].get_output_shape(0))
    axis += len(shape)
    shapes = [[*shape[:axis], length, *shape[axis + 1 :]] for length in (*widths, sum(widths))]
    if any(constant.get_element_type() != dtype for constant in constants):
        raise _NotFusible
    if axis >= 0 and [list(c.get_output_shape(0)) for c in constants] == shapes[:-1]:
        # Stacked as bytes, because two 4-bit numbers share a byte.
        stacked = np.concatenate(
            [constant.data.reshape(-1).view(np.uint8) for constant in constants]
        )
        return ov.op.Constant(ov.Tensor(stacked, ov.Shape(shapes[-1]), dtype), shared_memory=False)
    if any(not np.array_equal(constant.data, constants[0].data) for constant in constants):
        raise _NotFusible
    return constants[0]


def _stack_shapes(reshapes: Sequence[Node], widths: Sequence[int]) -> Node:
    """Returns the shape to which the stacked constants are reshaped."""
    shapes = [list(reshape.get_output_shape(0)) for reshape in reshapes]
    rest = shapes[0][1:]
    if shapes != [[length, *rest] for length in widths]:
        raise _NotFusible
    return opset13.constant([sum(widths), *rest], np.int64)
