"""Finds out how a mixture-of-experts layer computes routing weights from router scores.

Exports of one architecture differ in the nodes that do so. The routing weights that the graph
computes from random scores are therefore compared with the kernels' results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

from fastovms.engine.kernels.segments import NodeChain, folded, port_of

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""

Floats = NDArray[np.float32]

Form = tuple[tuple[object, ...], ...]

_NUM_ROWS: Final = 64
_SPREAD: Final = 3.0
"""The standard deviation of the random scores."""

_TOLERANCE: Final = 1e-4
"""The largest accepted difference of routing weights, relative to the largest weight."""


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    """How each row chooses its experts by router scores.

    The probabilities of experts are the softmax of all scores, or the sigmoid of each. The experts
    with the largest probability plus bias are chosen, only from the chosen groups: those with the
    largest sums of their two best experts. Routing weights are the probabilities, optionally
    divided by their sum, times `scale`.

    Attributes:
        num_experts, num_chosen: the number of experts, and how many each row chooses.
        is_sigmoid: whether probabilities are sigmoids.
        is_normalized: whether the chosen probabilities are divided by their sum plus `epsilon`.
        bias: f32 [experts]; None = 0.
        num_groups, num_chosen_groups: the number of groups, and how many each row chooses.
    """

    num_experts: int
    num_chosen: int
    is_sigmoid: bool
    is_normalized: bool = False
    bias: Floats | None = None
    scale: float = 1.0
    epsilon: float = 0.0
    num_groups: int = 1
    num_chosen_groups: int = 1

    def factors(self, scores: Floats) -> Floats:
        """Returns the routing weights, f32 [rows, experts]; 0 for experts that are not chosen."""
        shares: Floats
        if self.is_sigmoid:
            shares = np.reciprocal(1 + np.exp(-scores, dtype=np.float32))
        else:
            shares = np.exp(scores - scores.max(-1, keepdims=True), dtype=np.float32)
            shares /= shares.sum(-1, keepdims=True)
        ranks = shares if self.bias is None else shares + self.bias
        if self.num_groups > 1:
            groups = ranks.reshape(len(ranks), self.num_groups, -1)
            sums = np.sort(groups, -1)[..., -2:].sum(-1)
            best = np.argsort(-sums, -1, "stable")[:, : self.num_chosen_groups]
            is_left = np.zeros(sums.shape, bool)
            np.put_along_axis(is_left, best, True, -1)
            ranks = np.where(is_left[..., None], groups, 0).reshape(ranks.shape)
        chosen = np.argsort(-ranks, -1, "stable")[:, : self.num_chosen]
        values = np.take_along_axis(shares, chosen, -1)
        if self.is_normalized:
            values = values / (values.sum(-1, keepdims=True) + self.epsilon)
        found: Floats = np.zeros_like(shares)
        np.put_along_axis(found, chosen, values * np.float32(self.scale), -1)
        return found


def find_router(
    copies: Mapping[str, Node],
    known: dict[Form, Router],
    scores: Any,
    values: Any,
    choice: Node,
    num_experts: int,
) -> Router | None:
    """Returns the router that computes the same as the graph, or None if the kernels have none.

    Args:
        copies: the nodes of a copy of the graph, by name; this function changes them.
        known: routers found earlier, by the pattern of their nodes.
        scores: the output with the router scores, [rows, experts].
        values: the output with the routing weights of the chosen experts, [rows, chosen].
        choice: the TopK node that returns the indices of the chosen experts.
    """
    nodes = _nodes_between(scores, values.get_node())
    if nodes is None:
        return None
    candidates = list(_candidates(nodes, choice, num_experts))
    if not candidates:
        return None
    form = tuple(_form_of(node, num_experts) for node in nodes)
    if form in known:
        return replace(known[form], bias=candidates[0].bias)
    rng = np.random.default_rng(0)
    given = rng.normal(0, _SPREAD, (_NUM_ROWS, num_experts)).astype(np.float32)
    expected = _computed(copies, scores, (values, choice.output(1)), nodes, given)
    if expected is None:
        return None
    limit = _TOLERANCE * np.abs(expected).max()
    for candidate in candidates:
        own = candidate.factors(given)
        scale = float(expected.sum()) / max(float(own.sum()), 1e-30)
        router = replace(candidate, scale=1.0 if abs(scale - 1) < _TOLERANCE else scale)
        if np.allclose(router.factors(given), expected, rtol=0, atol=limit):
            known[form] = router
            return router
    return None


def _nodes_between(scores: Any, factors: Node) -> list[Node] | None:
    """Returns the nodes between router scores and routing weights, including the constants and
    shapes that they use. Returns None if routing weights depend on another input."""
    found: dict[int, Node] = {}
    pending, is_reached = [factors], False
    while pending:
        node = pending.pop()
        if node.get_instance_id() in found:
            continue
        found[node.get_instance_id()] = node
        if node.get_type_name() == "Parameter":
            return None
        if node.get_type_name() == "ShapeOf":
            continue
        for value in node.input_values():
            if port_of(value) == port_of(scores):
                is_reached = True
            else:
                pending.append(value.get_node())
    return list(found.values()) if is_reached else None


def _form_of(node: Node, num_experts: int) -> tuple[object, ...]:
    """Returns a node's type, attributes and constant values, except those of a bias."""
    kind = str(node.get_type_name())
    if kind != "Constant":
        return kind, str(sorted(node.get_attributes().items()))
    values = node.data
    return kind, values.shape, b"" if values.size == num_experts > 1 else values.tobytes()


def _candidates(nodes: list[Node], choice: Node, num_experts: int) -> Iterator[Router]:
    kinds = {node.get_type_name() for node in nodes}
    counts = {
        node.get_instance_id(): NodeChain(node).constant(1)
        for node in nodes
        if node.get_type_name() == "TopK"
    }
    added = [
        constant
        for node in nodes
        if node.get_type_name() == "Add"
        for constant in map(folded, (value.get_node() for value in node.input_values()))
        if constant is not None
    ]
    biases = [constant.reshape(-1) for constant in added if constant.size == num_experts > 1]
    if ("Sigmoid" in kinds) == ("Softmax" in kinds) or len(biases) > 1:
        return
    if not all(np.isfinite(bias).all() for bias in biases):
        return
    sizes = {key: int(count) for key, count in counts.items() if count is not None}
    if len(sizes) != len(counts):
        return
    num_chosen = sizes.pop(choice.get_instance_id())
    num_groups = num_chosen_groups = 1
    if sizes:
        others = [node for node in nodes if node.get_instance_id() in sizes]
        ranks = {len(node.get_input_partial_shape(0)): node for node in others}
        if len(others) != 2 or set(ranks) != {2, 3}:
            return
        num_groups = ranks[2].get_input_partial_shape(0)[1].get_length()
        num_chosen_groups = sizes[ranks[2].get_instance_id()]
    router = Router(
        num_experts,
        num_chosen,
        "Sigmoid" in kinds,
        bias=biases[0] if biases else None,
        num_groups=num_groups,
        num_chosen_groups=num_chosen_groups,
    )
    yield router
    for epsilon in [0.0, *(float(one.reshape(-1)[0]) for one in added if one.size == 1)]:
        yield replace(router, is_normalized=True, epsilon=epsilon)


def _computed(
    copies: Mapping[str, Node],
    scores: Any,
    outputs: Sequence[Any],
    nodes: list[Node],
    given: Floats,
) -> Floats | None:
    """Returns the routing weights of all experts, [rows, experts], that the graph computes from
    given scores, or None if these nodes cannot be computed separately. `outputs` are the weights
    and the indices of the chosen experts."""
    parameter = opset13.parameter(list(given.shape), np.float32)
    source = copies[scores.get_node().get_friendly_name()].output(scores.get_index())
    for target in source.get_target_inputs():
        target.replace_source_output(parameter.output(0))
    for node in nodes:
        if node.get_type_name() == "ShapeOf":
            shape = node.get_input_partial_shape(0)
            lengths = [len(given) if one.is_dynamic else one.get_length() for one in shape]
            kind = np.int32 if node.get_output_element_type(0) == ov.Type.i32 else np.int64
            constant = opset13.constant(np.array(lengths, kind))
            copy = copies[node.get_friendly_name()]
            for target in copy.output(0).get_target_inputs():
                target.replace_source_output(constant.output(0))
    found: Floats = np.zeros_like(given)
    try:
        results = [
            opset13.result(copies[one.get_node().get_friendly_name()].output(one.get_index()))
            for one in outputs
        ]
        alone = ov.Model(results, [parameter])
        compiled = ov.Core().compile_model(alone, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        values, numbers = compiled(given).to_tuple()
        np.put_along_axis(found, numbers.astype(np.int64), values, -1)
    except (RuntimeError, ValueError):
        return None
    return found
