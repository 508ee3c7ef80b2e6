"""Finds the mixture-of-experts layers of a graph.

The expected pattern is what OpenVINO's conversion produces for all of optimum-intel's exports. The
weights of all experts are one constant, [experts, rows, columns]. Every expert computes every row;
the results are multiplied by routing weights, which are 0 for experts that are not chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import openvino as ov

from fastovms.engine.kernels.instructions import Opcode
from fastovms.engine.kernels.matrices import packed_kind, read_weights
from fastovms.engine.kernels.routers import Form, Router, find_router
from fastovms.engine.kernels.segments import NodeChain, Step, Weights, folded, port_of

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""

_TIMES_TRANSPOSED: Final = {"transpose_a": False, "transpose_b": True}
_LANES: Final = 16
"""The maximum number of rows in a block of packed weights. Each expert must fill whole blocks."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture-of-experts layer: the weighted sum of `down(swish(gate(x)) * up(x))` of the chosen
    experts.

    Attributes:
        node: the node that returns the sum.
        source: the output that is the layer's input rows.
        scores: the router's matrix product.
        gate, up, down: products with the stacked matrices of all experts.
        router: how experts are chosen by the scores.
    """

    node: Node
    source: Any
    scores: Any
    gate: Step
    up: Step
    down: Step
    router: Router


class _OtherForm(Exception):
    """The nodes do not match the pattern of a mixture-of-experts layer."""


def router_of(mixture: Mixture) -> Step | None:
    """Returns the product of a router that is not quantized, or None if its weights cannot be
    read."""
    node = mixture.scores.get_node()
    matrix = folded(node.input_value(1).get_node())
    if matrix is None or node.get_attributes() != _TIMES_TRANSPOSED:
        return None
    source, widths = (node.input_value(0),), (mixture.router.num_experts,)
    matrix = np.ascontiguousarray(matrix)
    return Step(node, Opcode.FLOAT_PRODUCT, source, widths, constant=matrix)


def find_mixtures(model: ov.Model, instructions: str) -> list[Mixture]:
    """Returns the mixture-of-experts layers that the kernels can compute."""
    nodes = model.get_ordered_ops()
    if not any(node.get_type_name() == "TopK" for node in nodes):
        return []
    copies = {node.get_friendly_name(): node for node in model.clone().get_ops()}
    known: dict[Form, Router] = {}
    found = []
    for node in nodes:
        if node.get_type_name() == "ReduceSum":
            with suppress(_OtherForm):
                found.append(_mixture_of(node, instructions, copies, known))
    return found


def _mixture_of(
    node: Node, instructions: str, copies: Mapping[str, Node], known: dict[Form, Router]
) -> Mixture:
    """Returns the layer whose sum `node` returns. Raises `_OtherForm` if there is none."""
    if not NodeChain(node).has_constant(1, 0.0):
        raise _OtherForm
    weighted = _before(node, 0, "Multiply")
    down = _before(_before(weighted, 0, "Reshape"), 0, "MatMul")
    gated = _before(down, 0, "Multiply")
    swish = _before(gated, 0, "Swish")
    if swish.get_input_size() > 1 and not NodeChain(swish).has_constant(1, 1.0):
        raise _OtherForm
    gate, up = _before(swish, 0, "MatMul"), _before(gated, 1, "MatMul")
    if port_of(gate.input_value(0)) != port_of(up.input_value(0)):
        raise _OtherForm
    tile = _before(_before(gate, 0, "Reshape"), 0, "Tile")
    factors = _before(_before(_before(weighted, 1, "Unsqueeze"), 0, "Reshape"), 0, "Transpose")
    order = folded(factors.input_value(1).get_node())
    scattered = _before(factors, 0, "ScatterElementsUpdate")
    if order is None or order.tolist() != [1, 0] or not NodeChain(scattered).has_constant(3, 1.0):
        raise _OtherForm
    if scattered.get_attributes().get("reduction", "none") != "none":
        raise _OtherForm
    zeros = _before(scattered, 0, "Broadcast")
    if not NodeChain(zeros).has_constant(0, 0.0):
        raise _OtherForm
    choice = _before(scattered, 1, "TopK")
    scores = _scores_before(scattered)
    num_experts, width = gate.get_input_partial_shape(1)[0], down.get_input_partial_shape(1)[1]
    if (
        _skip_converts(scattered.input_value(1)).get_index() != 1
        or scores.get_partial_shape()[-1] != num_experts
        or node.get_output_partial_shape(0)[-1] != width
        or len(scores.get_target_inputs()) != 1
    ):
        raise _OtherForm
    source = scores.get_node().input_value(0)
    tiled = tile.input_value(0)
    if tiled.get_node().get_type_name() == "Reshape" and port_of(tiled) != port_of(source):
        tiled = tiled.get_node().input_value(0)
    if port_of(tiled) != port_of(source):
        raise _OtherForm
    count = num_experts.get_length()
    first, second, last = (_products(one, count, instructions) for one in (gate, up, down))
    router = find_router(copies, known, scores, scattered, choice, count)
    if router is None:
        raise _OtherForm
    return Mixture(node, source, scores, first, second, last, router)


def _scores_before(scattered: Node) -> Any:
    """Returns the only matrix product on which the routing weights depend."""
    pending, seen, found = [scattered], set[int](), []
    while pending:
        node = pending.pop()
        if node.get_instance_id() in seen or node.get_type_name() == "ShapeOf":
            continue
        seen.add(node.get_instance_id())
        if node.get_type_name() == "MatMul":
            found.append(node.output(0))
        else:
            pending += [value.get_node() for value in node.input_values()]
    if len(found) != 1:
        raise _OtherForm
    return found[0]


def _products(node: Node, num_experts: int, instructions: str) -> Step:
    """Returns the product with the stacked matrices of all experts."""
    compressed = read_weights(node.input_value(1).get_node(), num_axes=3)
    if compressed is None or node.get_attributes() != _TIMES_TRANSPOSED:
        raise _OtherForm
    kind = packed_kind(compressed, instructions)
    num_rows = compressed.num_rows // num_experts
    if kind is None or num_rows % _LANES:
        raise _OtherForm
    source = (node.input_value(0),)
    weights = Weights(compressed, kind)
    return Step(node, Opcode.EXPERTS, source, (num_rows,), weights=weights)


def _before(node: Node, index: int, kind: str) -> Node:
    """Returns the node of type `kind` at an input, also behind a conversion."""
    found = _skip_converts(node.input_value(index)).get_node()
    if found.get_type_name() != kind:
        raise _OtherForm
    return found


def _skip_converts(output: Any) -> Any:
    while output.get_node().get_type_name() == "Convert":
        output = output.get_node().input_value(0)
    return output
