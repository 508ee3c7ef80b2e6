"""Rewrites graphs so that the lengths of rows are known when programs are assembled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from fastovms.engine.kernels.segments import NodeChain, folded

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""


def free_lengths(model: ov.Model) -> None:
    """Rewrites a graph in place so that positions are computed from the length of `input_ids`, not
    from rows that the kernels compute."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "ShapeOf":
            continue
        shape = node.get_input_partial_shape(0)
        if len(shape) != 3 or shape[0].is_static or any(shape[axis].is_dynamic for axis in (1, 2)):
            continue
        lengths = [shape[axis].get_length() for axis in (1, 2)]
        if 1 not in lengths:
            continue
        kind = "i32" if node.get_output_element_type(0) == ov.Type.i32 else "i64"
        num_tokens = opset13.shape_of(model.input("input_ids").get_node(), kind)
        others = opset13.constant(np.array(lengths, kind.replace("i", "int")))
        found = opset13.concat([num_tokens, others], 0)
        for target in node.output(0).get_target_inputs():
            target.replace_source_output(found.output(0))
            user = target.get_node()
            axis = folded(user.input_value(1).get_node()) if user.get_input_size() > 1 else None
            if (
                user.get_type_name() == "Gather"
                and axis is not None
                and axis.size == 1
                and axis > 0
            ):
                length = np.full(
                    axis.shape, lengths[int(axis.item()) - 1], kind.replace("i", "int")
                )
                user.output(0).replace(opset13.constant(length).output(0))


def fix_rows(model: ov.Model, mixtures: Sequence[Node]) -> None:
    """Rewrites a graph in place, so that it is known that the result of each mixture has a row for
    each token, and those of later attentions, which are reshaped to as many rows."""
    for mixture in mixtures:
        output = mixture.output(0)
        shape = output.get_partial_shape()
        if len(shape) == 3 and shape[1].is_dynamic and shape[2].is_static:
            _reshape_for_users(output, output, [-1, 1, shape[2].get_length()])
    for node in model.get_ordered_ops() if mixtures else ():
        chain = NodeChain(node)
        if chain.type != "Reshape" or len(node.get_input_partial_shape(0)) != 4:
            continue
        chain.descend(1)
        if chain.type != "Concat" or chain.node.get_input_size() != 2:
            continue
        if not chain.has_constant(1, -1.0):
            continue
        chain.descend(0)
        axes = folded(chain.node.input_value(1).get_node()) if chain.type == "Gather" else None
        if axes is not None and axes.tolist() == [0, 1]:
            _reshape_for_users(node.output(0), node.input_value(0), [0, 0, -1])
    model.validate_nodes_and_infer_types()


def _reshape_for_users(output: Any, source: Any, lengths: list[int]) -> None:
    """Has those that take an output take `source` reshaped instead. A length of 0 is the same."""
    users = output.get_target_inputs()
    rows = opset13.reshape(source, opset13.constant(np.array(lengths, np.int64)), True)
    for user in users:
        user.replace_source_output(rows.output(0))
