"""Rotary position embedding (RoPE) that depends on the context length, as in longrope."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

from fastovms.engine.model.graph_walk import reached

_RESHAPING: Final = frozenset({"Convert", "Reshape", "Squeeze", "Unsqueeze"})
_TABLE_INPUT, _ROWS_INPUT, _AXIS_INPUT = range(3)

Node = Any


def is_of_positions(value: Any) -> bool:
    """Returns whether a value is the input `position_ids`, possibly reshaped or converted."""
    return "position_ids" in _source(value).output(0).get_names()


def compute_own_rows(model: ov.Model, consumers: Sequence[Node]) -> bool:
    """Rewrites in place the RoPE tables that `consumers` read, so that only the needed rows are
    computed. Returns False, without changes, if they have another structure.

    Some graphs compute the sines and cosines of all positions up to the longest sequence's end, as
    an outer product of positions and frequencies, and gather rows of that. The scaling factors of
    all rows depend only on the length of the longest sequence, so each row can be computed alone.
    Then factors can also be chosen for each token.
    """
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
    """Returns the nodes that gather rows of the tables for `consumers`."""
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
    """Returns whether a node multiplies a column of all positions, starting at 0."""
    column = product.input_value(0)
    shape = column.get_partial_shape()
    if shape.rank != 2 or shape[1] != 1 or any(product.get_attributes().values()):
        return False
    counted = _source(column)
    if counted.get_type_name() != "Range":
        return False
    return all(_equals_number(counted.input_value(i), number) for i, number in ((0, 0), (2, 1)))


def _is_by_token(gather: Node) -> bool:
    """Returns whether a node gathers rows of a table, [positions, width], by the tokens'
    positions."""
    rows = gather.input_value(_ROWS_INPUT)
    return (
        gather.input_value(_TABLE_INPUT).get_partial_shape().rank == 2
        and rows.get_partial_shape().rank == 2
        and _equals_number(gather.input_value(_AXIS_INPUT), 0)
        and is_of_positions(rows)
    )


def _equals_number(value: Any, number: int) -> bool:
    node = value.get_node()
    return node.get_type_name() == "Constant" and bool((node.data == number).all())


def _source(value: Any) -> Node:
    node = value.get_node()
    while node.get_type_name() in _RESHAPING:
        node = node.input_value(0).get_node()
    return node


TOKEN_SEQUENCE_LENS: Final = "token_sequence_lens"
"""The name of the new input; see `StepInputs`."""

_MAX_LEN: Final = 2**30
"""A limit above any sequence length."""
Array = NDArray[Any]


class LongRope(NamedTuple):
    """How a model's RoPE depends on the sequence length.

    Attributes:
        switch_len: the maximum length of a sequence with the RoPE of short sequences; None = there
            is only one RoPE.
        max_len: the maximum length of each sequence of a batch; None = unlimited.
        has_tables: whether the exported graph reads from a RoPE table as long as the sequence, so
            that positions must begin at 0.
    """

    switch_len: int | None = None
    max_len: int | None = None
    has_tables: bool = False


class _Use(NamedTuple):
    """An input of the node `consumer` whose value is the same for all tokens."""

    consumer: Node
    position: int

    @property
    def value(self) -> Any:
        return self.consumer.input_value(self.position)


def scale_by_sequence(model: ov.Model) -> LongRope:
    """Rewrites a paged model in place if the highest position in a batch determines the RoPE of all
    positions: afterwards each sequence's own length does, given by a new input.

    This is the longrope of Phi 3, 3.5, 4 mini and Phi MoE. An export chooses the short or the long
    factors by the highest position of the whole batch, so a result would depend on other sequences,
    on how the prompt is split and on what is cached. A sequence that outgrows the short factors has
    nothing in the cache that fits the long factors, and is recomputed, as in transformers
    (`prepare_inputs_for_generation` of Phi3ForCausalLM).

    Phi MoE, as exported with transformers 4, reads from a table of all positions, computed by the
    length of the longest sequence. There each token first computes its own row
    (`compute_own_rows`).
    """
    sources = [
        node
        for node in model.get_ordered_ops()
        if node.get_type_name() == "ReduceMax" and is_of_positions(node.input_value(0))
    ]
    has_tables = not sources
    if has_tables:
        conditions = list(_conditions(model))
        if not conditions:
            return LongRope()
        max_len = _Values(conditions).switch_len()
        sources = [condition.get_node() for condition in conditions]
        consumers = [use.consumer for source in sources for use in _uses_by_tokens(source)]
        if max_len is None or not compute_own_rows(model, consumers):
            return LongRope(max_len=max_len)
    uses = [use for source in sources for use in _uses_by_tokens(source)]
    if not uses:
        return LongRope()
    values = _Values([use.value for use in uses])
    switch_len = values.switch_len()
    if switch_len is None or _choose_by_sequence(model, uses, values, switch_len):
        return LongRope(switch_len, has_tables=has_tables)
    return LongRope(max_len=switch_len)


def _uses_by_tokens(node: Node) -> list[_Use]:
    """Returns the inputs at which values derived from a scalar are first combined with per-token
    values."""
    return [
        _Use(target.get_node(), target.get_index())
        for number in reached([node], _number_consumers)
        for target in number.output(0).get_target_inputs()
        if not _is_number(target.get_node())
    ]


def _number_consumers(node: Node) -> list[Node]:
    consumers = [target.get_node() for target in node.output(0).get_target_inputs()]
    return list(filter(_is_number, consumers))


def _is_number(node: Node) -> bool:
    return bool(node.get_output_partial_shape(0).is_static)


def _conditions(model: ov.Model) -> Iterator[Any]:
    """Yields the scalar boolean nodes that depend only on the length of the longest sequence."""
    for node in model.get_ordered_ops():
        output = node.output(0) if node.get_output_size() else None
        if output is None or output.get_element_type() != ov.Type.boolean:
            continue
        if output.get_partial_shape().is_static and output.get_partial_shape().rank == 0:
            names = {_name(parameter) for parameter in _parameters([output])}
            if "max_context_len" in names and names <= _INPUTS.keys():
                yield output


def _parameters(outputs: Sequence[Any]) -> list[Node]:
    """Returns the inputs of the model on which outputs depend."""
    nodes = reached(output.get_node() for output in outputs)
    return [node for node in nodes if node.get_type_name() == "Parameter"]


def _name(parameter: Node) -> str:
    return str(parameter.output(0).get_any_name())


_INPUTS: Final[dict[str, Callable[[int], Array]]] = {
    "input_ids": lambda length: np.zeros(1, np.int64),
    "position_ids": lambda length: np.array([length - 1], np.int64),
    "max_context_len": lambda length: np.array(length, np.int32),
}
"""Functions that create each input for the last token of a sequence of some length, by input
name."""


class _Values:
    """The values of some outputs, by sequence length."""

    def __init__(self, outputs: Sequence[Any]) -> None:
        parameters = _parameters(outputs)
        self._names = [_name(parameter) for parameter in parameters]
        part = ov.Model([opset13.result(output) for output in outputs], parameters, "factors")
        compiled = ov.Core().compile_model(part.clone(), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        # Calling the CompiledModel itself would make a reference cycle that keeps it, and the
        # model, in memory.
        self._request = compiled.create_infer_request()
        self._known: dict[int, list[Array]] = {}

    def at(self, length: int) -> list[Array]:
        if length not in self._known:
            outputs = self._request.infer([_INPUTS[name](length) for name in self._names])
            self._known[length] = [np.array(outputs[i]) for i in range(len(outputs))]
        return self._known[length]

    def are_equal(self, a: int, b: int) -> bool:
        """Returns whether the values are the same at two lengths."""
        return all(map(np.array_equal, self.at(a), self.at(b)))

    def switch_len(self) -> int | None:
        """Returns the greatest length with the same values as the shortest sequence; None = any
        length."""
        if self.are_equal(1, _MAX_LEN):
            return None
        low, high = 1, _MAX_LEN
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.are_equal(1, middle) else (low, middle)
        return low


def _choose_by_sequence(
    model: ov.Model, uses: Sequence[_Use], values: _Values, switch_len: int
) -> bool:
    """Makes each token use the values for its own sequence's length. Returns False if there are
    more than two different values, or their shape has no token dimension."""
    shorts, longs = values.at(1), values.at(_MAX_LEN)
    ranks = [len(use.consumer.get_output_partial_shape(0)) for use in uses]
    shapes = [
        (1,) * (rank - short.ndim) + short.shape for rank, short in zip(ranks, shorts, strict=True)
    ]
    fit = all(
        len(shape) == rank and shape[0] == 1 for shape, rank in zip(shapes, ranks, strict=True)
    )
    if not fit or not values.are_equal(switch_len + 1, _MAX_LEN):
        return False
    lens = opset13.parameter([-1], ov.Type.i64, name=TOKEN_SEQUENCE_LENS)
    lens.output(0).set_names({TOKEN_SEQUENCE_LENS})
    is_long = opset13.greater(lens, opset13.constant(switch_len, np.int64))
    for use, short, long, shape in zip(uses, shorts, longs, shapes, strict=True):
        axes = opset13.constant(np.arange(1, len(shape)), np.int64)
        chosen = opset13.select(
            opset13.unsqueeze(is_long, axes),
            opset13.constant(long.reshape(shape)),
            opset13.constant(short.reshape(shape)),
        )
        use.consumer.input(use.position).replace_source_output(chosen.output(0))
    model.add_parameters([lens])
    model.validate_nodes_and_infer_types()
    return True
