"""Nodes that the graphs of all random models use."""

from __future__ import annotations

import numpy as np
from openvino import Node
from openvino import opset13 as ops


def parameter(name: str, shape: list[int], dtype: type) -> Node:
    """Returns an input of the graph; -1 is a dynamic dimension."""
    node = ops.parameter(shape, dtype, name=name)
    node.output(0).set_names({name})
    return node


def index(value: int | list[int]) -> Node:
    """Returns an i64 constant."""
    return ops.constant(np.array(value, np.int64))


def real(value: float) -> Node:
    """Returns an f32 constant."""
    return ops.constant(np.array(value, np.float32))


def dimension(node: Node, axis: int | list[int]) -> Node:
    """Returns one or more dimensions of a node's shape."""
    return ops.gather(ops.shape_of(node), index(axis), index(0))
