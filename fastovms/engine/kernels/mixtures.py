"""Finds mixtures of experts in a graph: a router, and MLPs, the experts, of which each row uses
only some.

There are three forms, all from optimum-intel's exports. In the usual one, one constant has the
weights of all experts, [experts, rows, columns], and every expert computes every row. The results
are multiplied by factors, 0 for experts that a row has not chosen. In Mixtral and Qwen2-MoE, each
expert has its own products, which compute the rows that have chosen it. In Granite, each expert has
its own products, too, and the rows are sorted by expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from fastovms.engine.kernels.instructions import Opcode
from fastovms.engine.kernels.matrices import packed_kind, read_weights
from fastovms.engine.kernels.routers import Form, Router, find_router
from fastovms.engine.kernels.segments import NodeChain, Step, Weights, folded, port_of

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""

Floats = NDArray[np.float32]

_TIMES_TRANSPOSED: Final = {"transpose_a": False, "transpose_b": True}
_LANES: Final = 16
"""The most rows of a block of packed weights, which has those of one expert alone."""

_LARGEST_F16: Final = 65504.0
"""A limit that is as good as none."""

_OF_ROWS: Final = frozenset({"Convert", "Gather", "Reshape", "Unsqueeze"})
"""Operations between the rows of a step and those of an expert."""


@dataclass(frozen=True, slots=True)
class Gating:
    """How an expert joins the results of its first two matrices: `x / (1 + exp(-steepness * x)) *
    (y + shift)`, with x at most `limit`, and y from `-limit` to `limit`.

    Attributes:
        is_alternating: whether numbers x and y alternate, where one product returns both.
    """

    limit: float = float("inf")
    steepness: float = 1.0
    shift: float = 0.0
    is_alternating: bool = False

    @property
    def numbers(self) -> Floats:
        """Returns the first three, as the kernels take them."""
        return np.array([self.limit, self.steepness, self.shift], np.float32)


@dataclass(frozen=True, slots=True)
class Mixture:
    """A layer's mixture: `down(join(gate(x), up(x)))` of the chosen experts.

    Attributes:
        node: returns the sum.
        source: the rows.
        product: the router's product.
        scores: the same, perhaps with a bias.
        gate, up, down: products with the matrices of all experts, one after another: one product,
            or one for each expert. Constants of the first one are biases, [experts, rows]. Without
            `up`, the matrices of `gate` have the rows of both.
        gating: joins two results.
        router: chooses by the scores.
    """

    node: Node
    source: Any
    product: Node
    scores: Any
    gate: Sequence[Step]
    up: Sequence[Step]
    down: Sequence[Step]
    gating: Gating
    router: Router

    @property
    def products(self) -> list[Sequence[Step]]:
        """Returns the products whose weights are packed together."""
        return [steps for steps in (self.gate, self.up, self.down) if steps]


class _OtherForm(Exception):
    """The nodes do not form a mixture of experts."""


def router_of(mixture: Mixture) -> Step | None:
    """Returns the product of a router that is not quantized; None = it cannot be read."""
    node = mixture.product
    matrix = folded(node.input_value(1).get_node())
    if matrix is None or node.get_attributes() != _TIMES_TRANSPOSED:
        return None
    source, widths = (node.input_value(0),), (mixture.router.num_experts,)
    matrix = np.ascontiguousarray(matrix)
    return Step(node, Opcode.FLOAT_PRODUCT, source, widths, constant=matrix)


def find_mixtures(model: ov.Model, instructions: str) -> list[Mixture]:
    """Returns the mixtures of a graph that the kernels can compute."""
    nodes = model.get_ordered_ops()
    if not any(node.get_type_name() == "TopK" for node in nodes):
        return []
    finder = _Finder(model, instructions)
    found = []
    for node in nodes:
        for parts_of in _FORMS.get(node.get_type_name(), ()):
            with suppress(_OtherForm):
                found.append(finder.mixture(node, parts_of(node)))
    return found


class _Product(NamedTuple):
    node: Node
    bias: Floats | None = None


class _Parts(NamedTuple):
    """The parts of a mixture.

    Attributes:
        rows: those of an expert.
        choice: the TopK that returns the numbers of the chosen experts.
        values: the factors of these.
        gate, up, down: the products of each expert, or of all together, and what is added to them.
    """

    rows: Any
    choice: Node
    values: Any
    gate: Sequence[_Product]
    up: Sequence[_Product]
    down: Sequence[_Product]
    gating: Gating


class _Finder:
    """Makes mixtures of their parts in a graph."""

    def __init__(self, model: ov.Model, instructions: str) -> None:
        self._instructions = instructions
        self._copies = {node.get_friendly_name(): node for node in model.clone().get_ops()}
        self._known: dict[Form, Router] = {}

    def mixture(self, node: Node, parts: _Parts) -> Mixture:
        """Returns the mixture whose sum a node returns."""
        product = _product_before(parts.values.get_node())
        scores = _scores_of(product)
        num_experts = scores.get_partial_shape()[-1].get_length()
        source = product.input_value(0)
        if not _are_rows_of(parts.rows, source):
            raise _OtherForm
        products = (parts.gate, parts.up, parts.down)
        gate, up, down = (self._steps(each, num_experts) for each in products)
        widths = [steps[0].widths[0] for steps in (gate, up, down) if steps]
        if node.get_output_partial_shape(0)[-1] != widths[-1]:
            raise _OtherForm
        router = find_router(
            self._copies, self._known, scores, parts.values, parts.choice, num_experts
        )
        if router is None:
            raise _OtherForm
        return Mixture(node, source, product, scores, gate, up, down, parts.gating, router)

    def _steps(self, products: Sequence[_Product], num_experts: int) -> list[Step]:
        has_biases = any(product.bias is not None for product in products)
        if len(products) not in (0, 1, num_experts) or (has_biases and len(products) > 1):
            raise _OtherForm
        each = num_experts // max(len(products), 1)
        steps = [self._step(product, each) for product in products]
        if len({(step.widths, step.weights.kind) for step in steps if step.weights}) > 1:
            raise _OtherForm
        return steps

    def _step(self, product: _Product, num_experts: int) -> Step:
        """Returns the product with the matrices of some experts."""
        node, bias = product
        num_axes = 2 if num_experts == 1 else 3
        compressed = read_weights(node.input_value(1).get_node(), num_axes)
        if compressed is None or node.get_attributes() != _TIMES_TRANSPOSED:
            raise _OtherForm
        kind = packed_kind(compressed, self._instructions)
        num_rows = compressed.num_rows // num_experts
        if kind is None or num_rows % _LANES:
            raise _OtherForm
        if bias is not None:
            if bias.shape != (num_experts, 1, num_rows):
                raise _OtherForm
            bias = np.ascontiguousarray(bias)
        source = (node.input_value(0),)
        weights = Weights(compressed, kind)
        return Step(node, Opcode.EXPERTS, source, (num_rows,), constant=bias, weights=weights)


def _together(node: Node) -> _Parts:
    """Returns the parts of a mixture whose expert weights are one constant."""
    if not NodeChain(node).has_constant(1, 0.0):
        raise _OtherForm
    weighted = _before(node, 0, "Multiply")
    down = _biased(_before(weighted, 0, "Reshape").input_value(0))
    first, second, gating = _gating_before(_before(down.node, 0, "Multiply"))
    joint = _alternating(first, second)
    if joint is None:
        gate, up = [_biased(first)], [_biased(second)]
    else:
        gate, up, gating = [_biased(joint)], [], replace(gating, is_alternating=True)
    (source,) = _same(product.node.input_value(0) for product in (*gate, *up))
    rows = _through(source, "Reshape", "Tile")
    factors = _before(_before(_before(weighted, 1, "Unsqueeze"), 0, "Reshape"), 0, "Transpose")
    order = folded(factors.input_value(1).get_node())
    scattered = _before(factors, 0, "ScatterElementsUpdate")
    if order is None or order.tolist() != [1, 0] or not NodeChain(scattered).has_constant(3, 1.0):
        raise _OtherForm
    if scattered.get_attributes().get("reduction", "none") != "none":
        raise _OtherForm
    _require_zeros(scattered.input_value(0))
    choice = _chosen(scattered.input_value(1))
    return _Parts(rows, choice, scattered.input_value(2), gate, up, [down], gating)


def _one_by_one(node: Node) -> _Parts:
    """Returns the parts of a mixture whose experts compute only the rows that have chosen them."""
    if any(user.get_type_name() == "ScatterElementsUpdate" for user in _users(node.output(0))):
        raise _OtherForm  # it is not the last expert
    gate, up, down = list[_Product](), list[_Product](), list[_Product]()
    values, choices, rows, gatings, numbers = [], [], list[Any](), set[Gating](), []
    while node.get_type_name() == "ScatterElementsUpdate":
        weighted = _added(node)
        product = _before(weighted, 0, "MatMul")
        first, second, gating = _gating_before(_before(product, 0, "Multiply"))
        down.append(_Product(product))
        gate.append(_biased(first))
        up.append(_biased(second))
        rows += _same(each[-1].node.input_value(0) for each in (gate, up))
        values.append(
            _through(weighted.input_value(1), "Reshape", "Gather", "Reshape", "Unsqueeze")
        )
        indices = _through(node.input_value(1), "Broadcast", "Reshape", "Squeeze")
        selected = _before(_skip_converts(indices).get_node(), 0, "NonZero")
        selected = _before(selected, 0, "Gather")
        numbers.append(NodeChain(selected).constant(1))
        choices.append(_through(selected.input_value(0), "Transpose", "OneHot"))
        gatings.add(gating)
        node = _skip_converts(node.input_value(0)).get_node()
    _require_zeros(node.output(0))
    if numbers != list(range(len(numbers)))[::-1] or len(gatings) != 1:
        raise _OtherForm
    (value,), (choice,) = _same(values), _same(choices)
    chosen = _chosen(choice)
    return _Parts(rows[0], chosen, value, gate[::-1], up[::-1], down[::-1], gatings.pop())


def _sorted_rows(node: Node) -> _Parts:
    """Returns the parts of a mixture whose rows are sorted by expert."""
    _require_zeros(node.input_value(0))
    weighted = _added(node)
    down = _concatenated(weighted.input_value(0))
    (gated,) = _same(_through(each.node.input_value(0), "Slice") for each in down)
    first, second, gating = _gating_before(_skip_converts(gated).get_node())
    split = first.get_node()
    if split.get_type_name() != "VariadicSplit" or (first.get_index(), second.get_index()) != (
        0,
        1,
    ):
        raise _OtherForm
    _same(one.get_node().output(0) for one in (first, second))
    gate = _concatenated(split.input_value(0))
    (rows,) = _same(_through(each.node.input_value(0), "Slice") for each in gate)
    values = _through(weighted.input_value(1), "Unsqueeze", "Gather", "Reshape")
    choice = _before(values.get_node(), 0, "TopK")
    return _Parts(rows, choice, values, gate, [], down, gating)


_FORMS: Final[dict[str, tuple[Callable[[Node], _Parts], ...]]] = {
    "ReduceSum": (_together,),
    "ScatterElementsUpdate": (_one_by_one, _sorted_rows),
}
"""Return the parts of a mixture whose sum a node of a type returns."""


def _gating_before(gated: Node) -> tuple[Any, Any, Gating]:
    """Returns the two outputs that a product joins, and how."""
    for index in (0, 1):
        with suppress(_OtherForm):
            first, gating = _swish_before(gated.input_value(index))
            second = _skip_converts(gated.input_value(1 - index))
            if second.get_node().get_type_name() == "Add":
                other, shift = _with_constant(second.get_node())
                if shift.size == 1:
                    gating = replace(gating, shift=float(shift.item()))
                    second = other
            first, limit = _limited(first)
            second, low, high = _clamped(second)
            if not limit == high == -low:
                raise _OtherForm
            return first, second, replace(gating, limit=limit)
    raise _OtherForm


def _swish_before(output: Any) -> tuple[Any, Gating]:
    """Returns the output x of which another one is `x * sigmoid(steepness * x)`."""
    node = _skip_converts(output).get_node()
    if node.get_type_name() == "Swish":
        steepness = NodeChain(node).constant(1) if node.get_input_size() > 1 else 1.0
        if steepness is None:
            raise _OtherForm
        return node.input_value(0), Gating(steepness=steepness)
    if node.get_type_name() != "Multiply":
        raise _OtherForm
    for index in (0, 1):
        with suppress(_OtherForm):
            source = node.input_value(1 - index)
            scaled = _before(_before(node, index, "Sigmoid"), 0, "Multiply")
            other, factor = _with_constant(scaled)
            if port_of(source) == port_of(other) and factor.size == 1:
                return source, Gating(steepness=float(factor.item()))
    raise _OtherForm


def _limited(output: Any) -> tuple[Any, float]:
    """Returns the output that another one limits from above, and the limit; inf = it does not."""
    node = _skip_converts(output).get_node()
    if node.get_type_name() == "Minimum":
        other, limit = _with_constant(node)
        if limit.size == 1:
            return other, float(limit.item())
    source, low, high = _clamped(output)
    if low > -_LARGEST_F16:
        raise _OtherForm
    return source, high


def _clamped(output: Any) -> tuple[Any, float, float]:
    """Returns the output that another one clamps, and the limits; infinite ones = it does not."""
    output = _skip_converts(output)
    node = output.get_node()
    if node.get_type_name() != "Clamp":
        return output, -np.inf, np.inf
    attributes = node.get_attributes()
    return node.input_value(0), float(attributes["min"]), float(attributes["max"])


def _alternating(first: Any, second: Any) -> Any | None:
    """Returns the output whose numbers go to one and to the other of two in turn; None = these are
    no parts of an output."""
    nodes = [one.get_node() for one in (first, second)]
    if any(node.get_type_name() != "Slice" for node in nodes):
        return None
    for start, node in enumerate(nodes):
        last = len(node.get_input_partial_shape(0)) - 1
        expected = ((1, (start,)), (3, (2,)), (4, (-1, last)))
        if any(NodeChain(node).constant(index) not in known for index, known in expected):
            raise _OtherForm
    (found,) = _same(node.input_value(0) for node in nodes)
    return found


def _scores_of(product: Node) -> Any:
    """Returns the scores that a router's product is, perhaps with a bias. No other node may take
    them, since the kernels overwrite them."""
    scores = product.output(0)
    users = _users(scores)
    if [user.get_type_name() for user in users] == ["Add"]:
        with suppress(_OtherForm):
            _with_constant(users[0])
            scores = users[0].output(0)
    if scores.get_partial_shape()[-1].is_dynamic or len(_users(scores)) != 1:
        raise _OtherForm
    return scores


def _users(output: Any) -> list[Node]:
    """Returns the nodes that take the numbers of an output."""
    nodes = [target.get_node() for target in output.get_target_inputs()]
    return [node for node in nodes if node.get_type_name() != "ShapeOf"]


def _product_before(node: Node) -> Node:
    """Returns the only product that a node depends on."""
    pending, seen, found = [node], set[int](), []
    while pending:
        node = pending.pop()
        if node.get_instance_id() in seen or node.get_type_name() == "ShapeOf":
            continue
        seen.add(node.get_instance_id())
        if node.get_type_name() == "MatMul":
            found.append(node)
        else:
            pending += [value.get_node() for value in node.input_values()]
    if len(found) != 1:
        raise _OtherForm
    return found[0]


def _are_rows_of(rows: Any, source: Any) -> bool:
    """Returns whether rows are some of the rows that a router takes."""
    while port_of(rows) != port_of(source):
        node = rows.get_node()
        if node.get_type_name() not in _OF_ROWS:
            return False
        rows = node.input_value(0)
    return True


def _added(scattered: Node) -> Node:
    """Returns the product of rows and factors that a node adds to rows."""
    is_sum = scattered.get_attributes().get("reduction") == "sum"
    if not is_sum or not NodeChain(scattered).has_constant(3, 0.0):
        raise _OtherForm
    return _before(_before(scattered, 2, "Broadcast"), 0, "Multiply")


def _concatenated(output: Any) -> list[_Product]:
    """Returns the products whose rows follow one another in an output."""
    node = _skip_converts(output).get_node()
    if node.get_type_name() != "Concat" or node.get_attributes()["axis"] != 0:
        raise _OtherForm
    return [_Product(_before(node, index, "MatMul")) for index in range(node.get_input_size())]


def _biased(output: Any) -> _Product:
    """Returns the product that an output is, and the constant that is added to it, if any."""
    node, bias = _skip_converts(output).get_node(), None
    if node.get_type_name() == "Add":
        output, bias = _with_constant(node)
        node = _skip_converts(output).get_node()
    if node.get_type_name() != "MatMul":
        raise _OtherForm
    return _Product(node, bias)


def _with_constant(node: Node) -> tuple[Any, Floats]:
    """Returns the input of a node that is no constant, and the constant."""
    for index in (0, 1):
        constant = folded(node.input_value(index).get_node())
        if constant is not None:
            return node.input_value(1 - index), constant
    raise _OtherForm


def _chosen(numbers: Any) -> Node:
    """Returns the TopK that returns these numbers of experts."""
    numbers = _skip_converts(numbers)
    if numbers.get_node().get_type_name() != "TopK" or numbers.get_index() != 1:
        raise _OtherForm
    return numbers.get_node()


def _require_zeros(output: Any) -> None:
    node = _skip_converts(output).get_node()
    if node.get_type_name() != "Broadcast" or not NodeChain(node).has_constant(0, 0.0):
        raise _OtherForm


def _same(outputs: Iterable[Any]) -> list[Any]:
    """Returns the output that all of these are, alone in a list."""
    found = {port_of(output): output for output in outputs}
    if len(found) != 1:
        raise _OtherForm
    return list(found.values())


def _through(output: Any, *kinds: str) -> Any:
    """Returns the output that another one is made of by operations of these kinds, the last one
    first."""
    for kind in kinds:
        node = _skip_converts(output).get_node()
        if node.get_type_name() != kind:
            raise _OtherForm
        output = node.input_value(0)
    return _skip_converts(output)


def _before(node: Node, index: int, kind: str) -> Node:
    """Returns the node of a kind whose result, perhaps converted, another one takes."""
    found = _skip_converts(node.input_value(index)).get_node()
    if found.get_type_name() != kind:
        raise _OtherForm
    return found


def _skip_converts(output: Any) -> Any:
    while output.get_node().get_type_name() == "Convert":
        output = output.get_node().input_value(0)
    return output
