"""Nodes that all graphs have."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from openvino import opset13

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""


def constant(values: NDArray[Any]) -> Node:
    """Returns a constant node with the shape, type and values of an array."""
    return opset13.constant(values)


def index(value: int | list[int]) -> Node:
    """Returns a constant of i64."""
    return opset13.constant(np.array(value, np.int64))


def number(value: float) -> Node:
    """Returns a constant of f32."""
    return opset13.constant(np.array(value, np.float32))


def dimension(node: Node, axis: int) -> Node:
    """Returns the length of an axis of a node's shape, [1]."""
    return opset13.gather(opset13.shape_of(node), index([axis]), index(0))
