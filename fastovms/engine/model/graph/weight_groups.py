"""Finds out in which groups a model's integer weights share scales, which decides in which groups
activations can."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Set
from typing import Any, Final

import openvino as ov

MAX_ACTIVATION_GROUP: Final = 128
"""The most activations that share a scale."""

_INT4: Final = frozenset({ov.Type.i4, ov.Type.u4})
_INT8: Final = frozenset({ov.Type.i8, ov.Type.u8})
_DECOMPRESSION: Final = frozenset({"Convert", "Subtract", "Multiply", "Reshape"})

Node = Any


def activation_group_size(model: ov.Model) -> int:
    """Returns how many activations are to share a scale where they are quantized to 8 bits. That is
    done where the groups of a matrix are multiples of it, so it follows the groups that most
    weights have; matrices whose zero points are no integers, as in k-quants, count as none."""
    sizes: Counter[int] = Counter()
    for group, num_weights in _groups(model, _INT4 | _INT8):
        sizes[math.gcd(group, MAX_ACTIVATION_GROUP)] += num_weights
    return max(sizes, key=lambda size: sizes[size], default=MAX_ACTIVATION_GROUP)


def int4_group_size(model: ov.Model) -> int | None:
    """Returns how many weights of 4 bits share a scale in most matrices, `MAX_ACTIVATION_GROUP` for
    whole rows, too. None = the model has no such weights."""
    sizes: Counter[int] = Counter()
    for group, num_weights in _groups(model, _INT4):
        sizes[group] += num_weights
    return max(sizes, key=lambda size: sizes[size], default=None)


def _groups(model: ov.Model, types: Set[ov.Type]) -> Iterator[tuple[int, int]]:
    """Yields the size of the groups of each matrix, and how many weights it has."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant" and node.get_element_type() in types:
            group = _group_of(node)
            if group is not None:
                yield group, math.prod(node.shape)


def _group_of(weights: Node) -> int | None:
    """Returns how many weights of a matrix share a scale, or `MAX_ACTIVATION_GROUP` where whole
    rows do. None = they are of no matrix, or cannot be multiplied with integers."""
    node, group = weights, MAX_ACTIVATION_GROUP
    while True:
        targets = node.output(0).get_target_inputs()
        if not targets:
            return None
        target = next(iter(targets))
        node = target.get_node()
        kind = node.get_type_name()
        if kind == "MatMul":
            return group
        if kind not in _DECOMPRESSION or target.get_index() != 0:
            return None
        if kind == "Subtract" and node.input_value(1).get_node().get_type_name() == "Constant":
            return None
        if kind == "Reshape":
            group = weights.shape[-1]
