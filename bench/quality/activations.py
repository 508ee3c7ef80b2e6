"""Simulates 8-bit activations on processors whose instructions do not support them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13

_COMPRESSED: Final = {"i4", "u4", "i8", "u8"}

Node = Any


def matrices(model: ov.Model) -> list[Node]:
    """Returns the products with compressed weights in order; the last one is the head."""
    return [
        node
        for node in model.get_ordered_ops()
        if node.get_type_name() == "MatMul" and _is_compressed(node.input_value(1).get_node())
    ]


def _is_compressed(node: Node) -> bool:
    while node.get_type_name() in ("Convert", "Subtract", "Multiply", "Reshape"):
        node = node.input_value(0).get_node()
    is_constant = node.get_type_name() == "Constant"
    return is_constant and node.get_element_type().get_type_name() in _COMPRESSED


def quantize_activations(
    model: ov.Model, group_size: int, takes: Callable[[int, int], bool] = lambda index, num: True
) -> int:
    """Rounds the activations of products with compressed weights to 8 bits with a scale per group,
    as OpenVINO's kernels do, and continues in f32. Products whose rows are not divisible into
    groups are unchanged.

    Args:
        takes: decides by the index of a product and the number of products whether it is changed.

    Returns:
        The number of changed products.
    """
    found = matrices(model)
    num_changed = 0
    for index, node in enumerate(found):
        width = node.input_value(0).get_partial_shape()[-1]
        if width.is_dynamic or width.get_length() % group_size or not takes(index, len(found)):
            continue
        rounded = _rounded(node.input_value(0), width.get_length(), group_size)
        node.input(0).replace_source_output(rounded.output(0))
        num_changed += 1
    model.validate_nodes_and_infer_types()
    return num_changed


def _rounded(activations: Any, width: int, group_size: int) -> Node:
    rank = activations.get_partial_shape().rank.get_length()
    grouped = np.array([0] * (rank - 1) + [width // group_size, group_size], np.int64)
    whole = np.array([0] * (rank - 1) + [width], np.int64)
    groups = opset13.reshape(activations, grouped, True)
    largest = opset13.reduce_max(opset13.absolute(groups), np.array([rank], np.int64), True)
    scales = opset13.maximum(
        opset13.divide(largest, np.float32(127)), np.float32(np.finfo(np.float32).tiny)
    )
    rounded = opset13.multiply(
        opset13.round(opset13.divide(groups, scales), "half_to_even"), scales
    )
    # The last dimension is two here: zeros copy those before it.
    return opset13.reshape(rounded, whole, True)
