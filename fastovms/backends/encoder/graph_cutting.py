"""Cuts a graph into segments that are computed one after the other, so that others may compute
between them.

A graph may be cut behind a node that everything passes which weights have been applied to: between
the parts of a transformer that is the residual stream. What else a segment needs, such as the mask
of attention, it computes of the graph's inputs again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as ops

CARRIED: Final = "carried"
"""The name of the input and the output by which segments are joined."""

_WEIGHTED: Final = "MatMul"

_EVEN: Final = 0.9
"""The share of an equal part that a segment has at least."""


def cut(model: ov.Model, max_segments: int) -> list[ov.Model]:
    """Returns the segments of a graph with one output, about equal by their weights. The output of
    each is the first input of the next; further inputs have the names of the graph's. The graph
    itself is used up.

    Args:
        max_segments: how many there may be. Where a graph has fewer places for a cut, or cannot be
            cut at all, there are fewer.
    """
    nodes = model.get_ordered_ops()
    places = _chosen(list(_places(nodes)), _weights(nodes), max_segments)
    segments, carried = [], None
    inputs = model.get_parameters()
    for node in places:
        output = node.output(0)
        consumers = list(output.get_target_inputs())
        segments.append(_segment(output, carried, inputs))
        shape = output.get_partial_shape()
        carried = ops.parameter(shape, np.float32, name=CARRIED)
        carried.output(0).set_names({CARRIED})
        for consumer in consumers:
            consumer.replace_source_output(carried.output(0))
    [result] = model.get_results()
    segments.append(_segment(result.input_value(0), carried, inputs))
    return segments


def _segment(output: Any, carried: Any, inputs: Sequence[Any]) -> ov.Model:
    result = ops.result(output)
    first = [] if carried is None else [carried]
    reached = _ancestors(result)
    used = [node for node in (*first, *inputs) if node.get_name() in reached]
    return ov.Model([result], used, "segment")


def _ancestors(node: Any) -> set[str]:
    found: set[str] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node.get_name() not in found:
            found.add(node.get_name())
            waiting += [value.get_node() for value in node.input_values()]
    return found


def _places(nodes: Sequence[Any]) -> Iterator[Any]:
    """Yields the nodes behind which the graph may be cut, in their order."""
    constant, weighted = set(), set()
    num_open: dict[str, int] = {}  # weighted values that somebody has yet to read, by their node
    for node in nodes:
        name, kind = node.get_name(), node.get_type_name()
        sources = [value.get_node().get_name() for value in node.input_values()]
        if kind == "Constant" or (sources and all(source in constant for source in sources)):
            constant.add(name)
            continue
        for source in sources:
            if source in num_open:
                num_open[source] -= 1
                if not num_open[source]:
                    del num_open[source]
        applies = kind == _WEIGHTED and any(source in constant for source in sources)
        if kind == "ShapeOf" or not (applies or any(source in weighted for source in sources)):
            continue
        weighted.add(name)
        outputs = node.outputs()
        num_open[name] = sum(len(output.get_target_inputs()) for output in outputs)
        is_alone = len(num_open) == 1 and len(outputs) == 1
        if is_alone and outputs[0].get_element_type() == ov.Type.f32:
            yield node


def _weights(nodes: Sequence[Any]) -> dict[str, int]:
    """Returns for each node how many elements the weights have that are applied up to there."""
    constant: set[str] = set()
    sizes: dict[str, int] = {}
    total = 0
    for node in nodes:
        values = node.input_values()
        if node.get_type_name() == "Constant" or (
            values and all(value.get_node().get_name() in constant for value in values)
        ):
            constant.add(node.get_name())
        elif node.get_type_name() == _WEIGHTED:
            for value in values:
                if value.get_node().get_name() in constant:
                    total += int(np.prod(value.get_shape()))
        sizes[node.get_name()] = total
    return sizes


def _chosen(places: Sequence[Any], sizes: dict[str, int], max_segments: int) -> list[Any]:
    """Returns the places of which the segments between them are about equal. Of places between
    which no weights are applied, the last is taken: what stands between them may be fused with what
    is before."""
    whole = max(sizes.values(), default=0)
    share = whole / max_segments
    last_of_size = {sizes[node.get_name()]: node for node in places}
    chosen, last = [], 0
    for size, node in last_of_size.items():
        if size - last >= _EVEN * share and size < whole:
            chosen.append(node)
            last = size
    return chosen
