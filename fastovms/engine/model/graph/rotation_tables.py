"""Replaces tables of rotations by the rotations of the positions that tokens have.

Some graphs compute the sines and cosines of all positions up to the longest text's end, as an outer
product of positions and frequencies, and gather rows of that. All rows are alike in what is chosen
by the length of the longest text. Where each row is a token's own, that can be chosen by token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13

from fastovms.engine.model.graph.graph_walk import reached

_RESHAPING: Final = frozenset({"Convert", "Reshape", "Squeeze", "Unsqueeze"})
_TABLE_INPUT, _ROWS_INPUT, _AXIS_INPUT = range(3)

Node = Any


def is_of_positions(value: Any) -> bool:
    """Returns whether a value is the input `position_ids` in some shape and type."""
    return "position_ids" in _source(value).output(0).get_names()


def compute_own_rows(model: ov.Model, consumers: Sequence[Node]) -> bool:
    """Rewrites, in place, the tables that `consumers` are parts of. Returns False, and has changed
    nothing, where they are of another form."""
    products = [node for node in consumers if node.get_type_name() == "MatMul"]
    gathers = _gathers(consumers)
    if not products or not all(map(_is_outer, products)):
        return False
    if not gathers or not all(map(_is_by_token, gathers)):
        return False
    rows = opset13.convert(gathers[0].input_value(_ROWS_INPUT), "f32")
    positions = opset13.reshape(rows, opset13.constant(np.array([-1, 1])), False)
    for product in products:
        own = opset13.multiply(positions, product.input_value(1))
        product.output(0).replace(own.output(0))
    for gather in gathers:
        own = opset13.unsqueeze(gather.input_value(_TABLE_INPUT), opset13.constant(np.int64(1)))
        gather.output(0).replace(own.output(0))
    model.validate_nodes_and_infer_types()
    return True


def _gathers(consumers: Sequence[Node]) -> list[Node]:
    """Returns the nodes that take rows of what `consumers` are parts of."""
    found: dict[int, Node] = {}

    def others(node: Node) -> Iterator[Node]:
        for target in node.output(0).get_target_inputs():
            consumer = target.get_node()
            if consumer.get_type_name() == "Gather" and target.get_index() == 0:
                found[consumer.get_instance_id()] = consumer
            else:
                yield consumer

    for _ in reached(consumers, others):
        pass
    return list(found.values())


def _is_outer(product: Node) -> bool:
    """Returns whether a product is of all positions, from 0, as a column."""
    column = product.input_value(0)
    shape = column.get_partial_shape()
    if shape.rank != 2 or shape[1] != 1 or any(product.get_attributes().values()):
        return False
    counted = _source(column)
    if counted.get_type_name() != "Range":
        return False
    return all(_is_number(counted.input_value(i), number) for i, number in ((0, 0), (2, 1)))


def _is_by_token(gather: Node) -> bool:
    """Returns whether rows, [positions, width], are taken by the positions of tokens."""
    rows = gather.input_value(_ROWS_INPUT)
    return (
        gather.input_value(_TABLE_INPUT).get_partial_shape().rank == 2
        and rows.get_partial_shape().rank == 2
        and _is_number(gather.input_value(_AXIS_INPUT), 0)
        and is_of_positions(rows)
    )


def _is_number(value: Any, number: int) -> bool:
    node = value.get_node()
    return node.get_type_name() == "Constant" and bool((node.data == number).all())


def _source(value: Any) -> Node:
    node = value.get_node()
    while node.get_type_name() in _RESHAPING:
        node = node.input_value(0).get_node()
    return node
