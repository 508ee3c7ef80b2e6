"""Gives tokens their own positions where an exported graph counts them itself, from the length of
its cache: the text part of Qwen 3.5.

In a paged graph each token is a text of one token, so that all of them would get the position of
the longest text's last one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

Node = Any


def use_own_positions(model: ov.Model) -> None:
    """Rewrites a paged model in place: positions, counted as a row [1, ..., tokens] and repeated
    for a batch, become a column of those in `position_ids`. Of another form nothing is changed."""
    names = {name: port for port in model.inputs for name in port.get_names()}
    if "position_ids" not in names:
        return
    for row in filter(_is_row, model.get_ordered_ops()):
        shape = [1] * len(row.get_output_partial_shape(0))
        shape[-2] = -1
        column = opset13.reshape(
            names["position_ids"].get_node(), opset13.constant(np.array(shape)), False
        )
        row.output(0).replace(column.output(0))
    model.validate_nodes_and_infer_types()


def _is_row(node: Node) -> bool:
    if node.get_type_name() != "Reshape":
        return False
    counted = node.input_value(0).get_node()
    if counted.get_type_name() != "Range" or not _begins_late(counted):
        return False
    *others, last = node.get_output_partial_shape(0)
    is_row = bool(others) and last.is_dynamic and all(d.is_static and d == 1 for d in others)
    return is_row and all(map(_is_repeated, node.output(0).get_target_inputs()))


def _begins_late(counted: Node) -> bool:
    """Returns whether it is not known to begin at a certain number."""
    return bool(counted.input_value(0).get_node().get_type_name() != "Constant")


def _is_repeated(target: Any) -> bool:
    node = target.get_node()
    return bool(node.get_type_name() == "Broadcast" and target.get_index() == 0)
