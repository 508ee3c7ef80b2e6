"""Makes one projection of an attention layer's three, to queries, keys and values.

Each multiplies the same hidden states by other weights. One multiplication by all of these computes
the same numbers, but starts the threads once, and takes the activations to 8 bits once. (The two
projections of a gated MLP would gain less, and lose the activation function that OpenVINO computes
along with one of them.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""

_ATTENTION = "PagedAttentionExtension"
_NUM_PROJECTIONS = 3
"""Whose results are the first inputs of an attention."""

_DECOMPRESSION = frozenset({"Convert", "Multiply", "Reshape", "Subtract"})
_TIMES_TRANSPOSED = {"transpose_a": False, "transpose_b": True}

_ROWS_OF_WEIGHTS = -2
_ROWS_OF_BIAS = -1
"""The axis, counted from the last one, as constants are broadcast."""


def fuse_projections(model: ov.Model) -> int:
    """Rewrites a paged model in place; returns in how many layers. Those whose projections are not
    alike (only one has a bias, or an adapter; they are one already) stay as they are."""
    layers = [node for node in model.get_ordered_ops() if node.get_type_name() == _ATTENTION]
    num_fused = sum(map(_fuse, layers))
    if num_fused:
        model.validate_nodes_and_infer_types()
    return num_fused


class _Projection(NamedTuple):
    """Attributes:
    matmul: has the weights as its second input, [rows, columns].
    bias: the addition after it, if it has one.
    rows: the width of its result.
    """

    matmul: Node
    bias: Node | None
    rows: int

    @property
    def result(self) -> Node:
        return self.bias or self.matmul


class _Replacement(NamedTuple):
    """What an input of a node shall be."""

    consumer: Node
    position: int
    constant: Node


class _NotAlikeError(Exception):
    """The projections cannot become one."""


def _fuse(attention: Node) -> bool:
    try:
        projections = [
            _projection_behind(attention.input_value(index).get_node())
            for index in range(_NUM_PROJECTIONS)
        ]
        replacements = _stack_projections(projections)
    except _NotAlikeError:
        return False
    targets = [list(projection.result.output(0).get_target_inputs()) for projection in projections]
    for consumer, position, constant in replacements:
        consumer.input(position).replace_source_output(constant.output(0))
    _infer_shapes(projections[0].result)
    parts = opset13.variadic_split(
        projections[0].result,
        opset13.constant(-1, np.int64),
        opset13.constant([projection.rows for projection in projections], np.int64),
    )
    for part, inputs in zip(parts.outputs(), targets, strict=True):
        for target in inputs:
            target.replace_source_output(part)
    return True


def _projection_behind(node: Node) -> _Projection:
    """The only multiplication by weights on the ways to `node`."""
    matmuls: list[Node] = []
    pending, seen = [node], set()
    while pending:
        node = pending.pop()
        if node.get_instance_id() in seen:
            continue
        seen.add(node.get_instance_id())
        if node.get_type_name() == "MatMul" and _is_constant(node.input_value(1).get_node()):
            matmuls.append(node)
        else:
            pending += [value.get_node() for value in node.input_values()]
    if len(matmuls) != 1 or matmuls[0].get_attributes() != _TIMES_TRANSPOSED:
        raise _NotAlikeError
    shape = matmuls[0].get_input_partial_shape(1)
    if shape.is_dynamic or len(shape) != 2:
        raise _NotAlikeError
    return _Projection(matmuls[0], _bias_after(matmuls[0]), shape[0].get_length())


def _bias_after(matmul: Node) -> Node | None:
    consumers = [target.get_node() for target in matmul.output(0).get_target_inputs()]
    if len(consumers) != 1 or consumers[0].get_type_name() != "Add":
        return None
    return consumers[0] if _is_constant(consumers[0].input_value(1).get_node()) else None


def _infer_shapes(projection: Node) -> None:
    """Anew, from its weights on."""
    for value in projection.input_values():
        node = value.get_node()
        if node.get_type_name() == "MatMul" or _is_constant(node):
            _infer_shapes(node)
    projection.validate_and_infer_types()


def _is_constant(node: Node) -> bool:
    """Whether it is one, or one that is held compressed."""
    while node.get_type_name() in _DECOMPRESSION:
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Constant")


def _stack_projections(projections: Sequence[_Projection]) -> list[_Replacement]:
    """What gives the first projection the weights of all."""
    matmuls = [projection.matmul for projection in projections]
    biases = [projection.bias for projection in projections]
    inputs = {_identity(matmul.input_value(0)) for matmul in matmuls}
    if len(inputs) != 1 or len({matmul.get_instance_id() for matmul in matmuls}) != len(matmuls):
        raise _NotAlikeError
    rows = [projection.rows for projection in projections]
    weights = _stack(matmuls, 1, rows, _ROWS_OF_WEIGHTS)
    if not any(biases):
        return weights
    if not all(biases):
        raise _NotAlikeError
    return weights + _stack(biases, 1, rows, _ROWS_OF_BIAS)


def _identity(output: Any) -> tuple[int, int]:
    return output.get_node().get_instance_id(), output.get_index()


def _stack(
    consumers: Sequence[Node], index: int, rows: Sequence[int], axis: int
) -> list[_Replacement]:
    """What puts the constants behind an input of all consumers, which belong to that many `rows`
    each, on top of each other behind that of the first consumer. `axis` is that of the rows."""
    nodes = [consumer.input_value(index).get_node() for consumer in consumers]
    kinds = {node.get_type_name() for node in nodes}
    if kinds == {"Constant"}:
        return [_Replacement(consumers[0], index, _stack_constants(nodes, rows, axis))]
    if len(kinds) != 1 or not kinds <= _DECOMPRESSION:
        raise _NotAlikeError
    if len(nodes[0].output(0).get_target_inputs()) != 1:  # as where layers share their weights
        raise _NotAlikeError
    if any(node.get_attributes() != nodes[0].get_attributes() for node in nodes):
        raise _NotAlikeError
    if kinds == {"Reshape"}:
        first = _Replacement(nodes[0], 1, _stack_shapes(nodes, rows))
        return [first, *_stack(nodes, 0, rows, -len(nodes[0].get_input_shape(0)))]
    return [r for i in range(nodes[0].get_input_size()) for r in _stack(nodes, i, rows, axis)]


def _stack_constants(constants: Sequence[Node], rows: Sequence[int], axis: int) -> Node:
    dtype, shape = constants[0].get_element_type(), list(constants[0].get_output_shape(0))
    axis += len(shape)
    shapes = [[*shape[:axis], length, *shape[axis + 1 :]] for length in (*rows, sum(rows))]
    if any(constant.get_element_type() != dtype for constant in constants):
        raise _NotAlikeError
    if axis >= 0 and [list(c.get_output_shape(0)) for c in constants] == shapes[:-1]:
        # In bytes, because a number may take half of one.
        stacked = np.concatenate(
            [constant.data.reshape(-1).view(np.uint8) for constant in constants]
        )
        return ov.op.Constant(ov.Tensor(stacked, ov.Shape(shapes[-1]), dtype), shared_memory=False)
    if any(not np.array_equal(constant.data, constants[0].data) for constant in constants):
        raise _NotAlikeError
    return constants[0]


def _stack_shapes(reshapes: Sequence[Node], rows: Sequence[int]) -> Node:
    """What to reshape the stacked constants to."""
    shapes = [list(reshape.get_output_shape(0)) for reshape in reshapes]
    rest = shapes[0][1:]
    if shapes != [[length, *rest] for length in rows]:
        raise _NotAlikeError
    return opset13.constant([sum(rows), *rest], np.int64)
