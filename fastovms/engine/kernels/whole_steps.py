"""Computes whole steps with one program, including attention, on OpenVINO's KV cache.

OpenVINO computes only the embedding and the tables of rotary positions. `operation` computes graphs
with nodes that the kernels do not support here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13

from fastovms.engine.kernels.assembler import (
    PART_SIZE,
    Assembler,
    Place,
    Program,
    WeightStore,
)
from fastovms.engine.kernels.experts import choice_size
from fastovms.engine.kernels.instructions import Field, Opcode, StepField
from fastovms.engine.kernels.lengths import fix_rows, free_lengths
from fastovms.engine.kernels.mixtures import Mixture, find_mixtures, router_of
from fastovms.engine.kernels.segments import (
    GELU,
    OPCODES_OF_TWO,
    OPCODES_WITH_CONSTANT,
    NodeChain,
    Port,
    Segment,
    Step,
    float_product_of,
    folded,
    normalization_of,
    port_of,
    product_of,
)

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""

_ATTENTION: Final = "PagedAttentionExtension"
_CONVOLUTION: Final = "PagedCausalConv1D"
_GATED_DELTA: Final = "PagedGatedDeltaNet"
_SELECTIVE_SCAN: Final = "PagedSelectiveSSM"
_ALIASES: Final = frozenset({"Reshape", "Transpose", "Unsqueeze", "Squeeze"})
_OF_FIRST_INPUT: Final = _ALIASES | {
    _CONVOLUTION,
    "Clamp",
    "Gather",
    "Gelu",
    "Sigmoid",
    "Slice",
    "SoftPlus",
    "Swish",
    "VariadicSplit",
}
"""Operations of which only the first input has rows."""

_OPCODES_OF_TWO: Final = {**OPCODES_OF_TWO, "Subtract": Opcode.SUBTRACT}
_OPCODES_WITH_CONSTANT: Final = {**OPCODES_WITH_CONSTANT, "Divide": Opcode.MULTIPLY_CONSTANT}
_OPCODES_OF_ONE: Final = {"Sigmoid": Opcode.SIGMOID, "SoftPlus": Opcode.SOFTPLUS}

_SCALE, _WINDOW = 9, 10
_SINKS: Final = 20
_UNUSED: Final = frozenset({11, 13, 14, 15, 16, 17, 22, 23, 24, 25, 26, 27})
"""The inputs of paged attention that must be empty, such as ALiBi slopes and rotations."""


_OF_EXPERTS: Final = frozenset(
    {"GatherElements", "NonZero", "ReduceSum", "ScatterElementsUpdate", "Tile", "TopK"}
)


class UnsupportedNodeError(Exception):
    """The graph has a node that the kernels do not support. The message names the node's type."""

    def __init__(self, node: Node) -> None:
        kind = node.get_type_name()
        what = "experts of this form" if kind in _OF_EXPERTS else f"the operation {kind}"
        super().__init__(f"they do not support {what} ({node.get_friendly_name()})")


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The shape of all key and value caches: [blocks, heads, block_size, head_size]. An 8-bit cache
    has scales and zero points in addition; see `Opcode.ATTEND`.

    Attributes:
        bits: the bits of a cached value: 8, 16 or 32.
        state_bits: the bits of a value in state tables: 32 (f32) or 16 (bf16).
    """

    heads: int
    block_size: int
    head_size: int
    bits: int
    state_bits: int = 32


@dataclass(frozen=True, slots=True)
class WholeStep:
    """A program that computes whole steps.

    Attributes:
        before: the graph that OpenVINO computes. Its results are the program's inputs.
        program: the program that computes logits.
        logits: the index of the buffer with the logits.
        states: the index of the buffer with the hidden states for a draft head; None = the model
            has no such output.
        vocab_size: the number of logits in a row.
        caches: the names of the model's cache and state inputs, in the order of the step's fields
            from `StepField.CACHES`.
        groups: the numbers of the modules of each LoRA instruction; see `Opcode.LOW_RANK_DOWN`.
    """

    before: ov.Model
    program: Program
    logits: int
    states: int | None
    vocab_size: int
    caches: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]


class Module(NamedTuple):
    """A matrix that LoRA adapters may change.

    Attributes:
        number: its index among the model's modules.
        width: the number of its output values.
    """

    number: int
    width: int


def assemble_step(
    model: ov.Model,
    store: WeightStore,
    cache: CacheShape,
    sampled: str,
    states: str,
    modules: Mapping[str, Sequence[Module]] | None = None,
) -> WholeStep:
    """Returns the program of a paged model. Raises UnsupportedNodeError if the kernels do not
    support all of its nodes.

    Args:
        sampled: the name of the input with the indices of the rows whose logits are needed.
        states: the name of the output of hidden states, which not every model has.
        modules: the modules whose stacked results each product has, by product name. None = no
            adapters.
    """
    graph = _Graph(model, store.kernels.instructions, sampled, states)
    assembler = _StepAssembler(graph, store, cache, modules or {})
    program = assembler.assemble()
    results = [opset13.result(port) for port in graph.inputs]
    before = ov.Model(results, _parameters_of(results), "before")
    logits, own = assembler.result(graph.result), None
    if graph.states is not None:
        own = assembler.result(graph.states)
    vocab_size = program.strides[logits]
    groups = tuple(assembler.groups)
    caches = tuple(assembler.caches)
    return WholeStep(before, program, logits, own, vocab_size, caches, groups)


def _parameters_of(results: Sequence[Node]) -> list[Node]:
    pending, seen, found = list(results), set[int](), []
    while pending:
        node = pending.pop()
        if node.get_instance_id() in seen:
            continue
        seen.add(node.get_instance_id())
        if node.get_type_name() == "Parameter":
            found.append(node)
        pending += [value.get_node() for value in node.input_values()]
    return found


def _row_shape(output: Any) -> tuple[int, int] | None:
    """Returns (heads, width) if an output has one f32 row per token, or None. Axes of length 1
    after the width are ignored."""
    shape = output.get_partial_shape()
    if shape.rank.is_dynamic or len(shape) < 2 or output.get_element_type() != ov.Type.f32:
        return None
    dynamic = [axis for axis in range(len(shape)) if shape[axis].is_dynamic]
    # The exported graph has the tokens on the second axis, which has length 1 here.
    if dynamic and (dynamic[0] != 0 or len(dynamic) > 2 or dynamic[-1] == len(shape) - 1):
        return None
    lengths = [1 if axis in dynamic else shape[axis].get_length() for axis in range(1, len(shape))]
    while len(lengths) > 1 and lengths[-1] == 1:
        lengths.pop()
    return math.prod(lengths[:-1]), lengths[-1]


def _is_width_axis(output: Any, axis: int | None) -> bool:
    """Returns whether `axis` is the width axis in the sense of `_row_shape`."""
    shape = output.get_partial_shape()
    if axis is None or not -len(shape) < axis < len(shape):
        return False
    axis %= len(shape)
    if axis == 0 or any(shape[one].is_dynamic for one in range(axis, len(shape))):
        return False
    after = [shape[one].get_length() for one in range(axis + 1, len(shape))]
    return set(after) <= {1} and (axis == 1 or shape[axis].get_length() != 1)


def _width(output: Any) -> int | None:
    shape = _row_shape(output)
    return None if shape is None else shape[1]


class _Graph:
    """The nodes that a program has to compute.

    Attributes:
        nodes: in topological order. The nodes of the hidden states come first, because logits are
            computed only for sampled tokens.
        inputs: outputs of other nodes that are the program's input rows.
        result: the output that is the logits.
        states: the output that is the hidden states; None = no such output.
    """

    def __init__(self, model: ov.Model, instructions: str, sampled: str, states: str) -> None:
        self._instructions = instructions
        self._sampled = sampled
        found = find_mixtures(model, instructions)
        fix_rows(model, [mixture.node for mixture in found])
        free_lengths(model)
        ordered = model.get_ordered_ops()
        late = self._late(ordered)
        self.mixtures = {one.node.get_instance_id(): one for one in found}
        self._routers = {one.product.get_instance_id(): one for one in found}
        self._known: dict[int, Step] = {}
        self.result = model.output("logits").get_node().input_value(0)
        named = [port for port in model.outputs if states in port.get_names()]
        self.states = named[0].get_node().input_value(0) if named else None
        needed: set[int] = set()
        inputs: dict[Port, Any] = {}
        self.nodes: list[Node] = []
        for result in filter(None, (self.states, self.result)):
            before = set(needed)
            self._collect(result, late, needed, inputs)
            own = needed - before
            self.nodes += [node for node in ordered if node.get_instance_id() in own]
        self.inputs = list(inputs.values())

    def _collect(
        self, result: Any, late: set[int], needed: set[int], inputs: dict[Port, Any]
    ) -> None:
        """Adds the nodes on which an output depends to `needed`, and their inputs to `inputs`."""
        pending = [result]
        while pending:
            port = pending.pop()
            node = port.get_node()
            key = node.get_instance_id()
            if key not in late:
                if _row_shape(port) is None:
                    raise UnsupportedNodeError(node)
                inputs[port_of(port)] = port
            elif key not in needed:
                needed.add(key)
                pending += self.sources(node)

    def _late(self, ordered: Sequence[Node]) -> set[int]:
        """Returns the ids of the nodes that depend on a matrix product or on attention."""
        late: set[int] = set()
        for node in ordered:
            kind = node.get_type_name()
            before = (value.get_node().get_instance_id() for value in node.input_values())
            is_product = kind == "MatMul" and node.get_input_partial_shape(1).is_static
            if kind == _ATTENTION or is_product or any(one in late for one in before):
                late.add(node.get_instance_id())
        return late

    def step(self, node: Node) -> Step | None:
        """Returns the step of a matrix product or RMS norm, or None for other nodes."""
        key = node.get_instance_id()
        if key not in self._known:
            shape = _row_shape(node.output(0))
            step = None
            if shape is not None and node.get_type_name() == "MatMul":
                step = product_of(node, (shape[1],), self._instructions)
                if step is None and key in self._routers:
                    step = router_of(self._routers[key])
                elif step is None:
                    step = float_product_of(node)
            elif shape is not None and node.get_type_name() == "Multiply":
                step = normalization_of(node, (shape[1],), _width)
            if step is None:
                return None
            self._known[key] = step
        return self._known[key]

    def sources(self, node: Node) -> list[Any]:
        """Returns a node's inputs that have rows. Raises UnsupportedNodeError if the kernels do not
        support the node."""
        kind = node.get_type_name()
        mixture = self.mixtures.get(node.get_instance_id())
        if mixture is not None:
            return [mixture.scores, mixture.source]
        step = self.step(node)
        values = node.input_values()
        if step is not None:
            return list(step.sources)
        if kind == _ATTENTION:
            return list(values[:3])
        if kind == _GATED_DELTA:
            return [*values[:3], *values[4:6]]
        if kind == _SELECTIVE_SCAN:
            return list(values[1:5])
        is_division = kind == "Divide" and folded(values[1].get_node()) is not None
        if kind in _OPCODES_OF_TWO or is_division:
            return [value for value in values if folded(value.get_node()) is None]
        if kind == "Concat":
            return list(values)
        if kind == "Gather" and not self._takes_sampled(node):
            raise UnsupportedNodeError(node)
        if kind in _OF_FIRST_INPUT:
            return [values[0]]
        raise UnsupportedNodeError(node)

    def _takes_sampled(self, node: Node) -> bool:
        indices = node.input_value(1).get_node()
        while indices.get_type_name() == "Convert":
            indices = indices.input_value(0).get_node()
        return (
            indices.get_type_name() == "Parameter"
            and self._sampled in indices.output(0).get_names()
            and NodeChain(node).has_constant(2, 0.0)
        )


class _StepAssembler(Assembler):
    """Builds the program of a whole step from a graph."""

    def __init__(
        self,
        graph: _Graph,
        store: WeightStore,
        cache: CacheShape,
        modules: Mapping[str, Sequence[Module]],
    ) -> None:
        products = [step for step in map(graph.step, graph.nodes) if step is not None]
        super().__init__(Segment(products, graph.inputs), store)
        self._graph = graph
        self._cache = cache
        self._modules = modules
        self._quantized_pairs: tuple[Place, Place, int, int] | None = None
        self.caches: list[str] = []
        self.groups: list[tuple[int, ...]] = []
        for port in graph.inputs:
            heads, width = _shape_of(port)
            place = self._places[port_of(port)]
            self._strides[place.buffer] = heads * width
            self._places[port_of(port)] = replace(place, heads=heads, stride=width, width=width)

    def assemble(self) -> Program:
        """Returns the program."""
        results = [
            port_of(port) for port in (self._graph.states, self._graph.result) if port is not None
        ]
        for node in self._graph.nodes:
            self._add_node(node)
            if (node.get_instance_id(), 0) in results:
                self._isolate((node.get_instance_id(), 0))
        if all(row[Field.OPCODE] != Opcode.GATHER for row in self._rows):
            raise UnsupportedNodeError(self._graph.result.get_node())
        return self.finish()

    def result(self, port: Any) -> int:
        """Returns the index of the buffer of a model output."""
        return self._place(port).buffer

    def _isolate(self, port: Port) -> None:
        """Copies a model output to a buffer of its own, if it shares one."""
        place = self._places[port]
        if place.start or place.heads != 1 or place.width != self._strides[place.buffer]:
            target = self._new_place(1, place.width)
            self._emit_heads(Opcode.COPY, place, place, target)
            self._places[port] = target

    def _place(self, port: Any) -> Place:
        return self._places[port_of(port)]

    def _add_node(self, node: Node) -> None:
        kind = node.get_type_name()
        step = self._graph.step(node)
        mixture = self._graph.mixtures.get(node.get_instance_id())
        if mixture is not None:
            self._add_mixture(mixture)
        elif kind == "MatMul" and step is not None:
            self._add_product(step)
        elif step is not None:
            self._add_normalization(step)
        elif kind == _ATTENTION:
            self._add_attention(node)
        elif kind == _CONVOLUTION:
            self._add_convolution(node)
        elif kind == _GATED_DELTA:
            self._add_gated_delta(node)
        elif kind == _SELECTIVE_SCAN:
            self._add_selective_scan(node)
        elif kind in _OPCODES_OF_TWO or kind == "Divide":
            self._add_of_two(node)
        elif kind == "Swish":
            if node.get_input_size() > 1 and not NodeChain(node).has_constant(1, 1.0):
                raise UnsupportedNodeError(node)
            self._add_of_one(node, Opcode.SWISH)
        elif kind in _OPCODES_OF_ONE:
            self._add_of_one(node, _OPCODES_OF_ONE[kind])
        elif kind == "Clamp":
            limits = [np.float32(node.get_attributes()[name]) for name in ("min", "max")]
            self._add_of_one(node, Opcode.CLAMP, *np.array(limits).view(np.int32).tolist())
        elif kind == "Gelu":
            mode = str(node.get_attributes().get("approximation_mode", "ERF")).upper()
            self._add_of_one(node, GELU[mode])
        elif kind == "VariadicSplit":
            self._add_split(node)
        elif kind == "Slice":
            self._add_slice(node)
        elif kind == "Concat":
            self._add_concat(node)
        elif kind == "Gather":
            place = self._flat(node.input_value(0))
            target = self._new_place(1, place.width)
            self._emit_heads(Opcode.GATHER, place, place, target)
            self._places[node.get_instance_id(), 0] = target
        else:
            self._add_alias(node)

    def _add_product(self, step: Step) -> None:
        if (step.id, 0) in self._places:
            return
        source = step.sources[0]
        self._places[port_of(source)] = self._flat(source)
        products = [step] if step.weights is None else self._products_with(step)
        if step.weights is None:
            self._multiply_floats(step)
        else:
            self._multiply(products)
        self._adapt(products, self._place(source))
        for product in products:
            width = product.widths[0]
            place = self._places[product.id, 0]
            self._places[product.id, 0] = replace(place, stride=width, width=width)

    def _multiply_floats(self, step: Step) -> None:
        matrix = step.constant
        assert matrix is not None, "see router_of"
        source, target = self._place(step.sources[0]), self._target((step.id, 0), len(matrix))
        num_parts = max(self._store.kernels.num_threads, matrix.nbytes // PART_SIZE)
        parameters = [matrix.ctypes.data, matrix.shape[1], 0, 0, 0, 0, min(num_parts, len(matrix))]
        self._emit(Opcode.FLOAT_PRODUCT, source, source, target, len(matrix), *parameters)
        self._constants.append(matrix)

    def _adapt(self, products: Sequence[Step], source: Place) -> None:
        """Adds the LoRA instructions for products whose results are stacked."""
        first = self._places[products[0].id, 0]
        numbers: list[int] = []
        table: list[tuple[int, int, int]] = []
        for product in products:
            start = self._places[product.id, 0].start
            for number, width in self._modules.get(product.node.get_friendly_name(), ()):
                numbers.append(number)
                table.append((number, start - first.start, width))
                start += width
        if not table:
            return
        if any(row[Field.OPCODE] == Opcode.GATHER for row in self._rows):
            raise UnsupportedNodeError(products[0].node)
        places = np.array(table, np.int64)
        self._constants.append(places)
        parameters = (places.ctypes.data, len(table), len(self.groups))
        self._emit(Opcode.LOW_RANK_DOWN, source, source, source, source.width, *parameters)
        self._emit(Opcode.LOW_RANK_UP, first, first, first, 0, *parameters)
        self.groups.append(tuple(numbers))

    def _add_mixture(self, mixture: Mixture) -> None:
        router = mixture.router
        num_experts, num_chosen = router.num_experts, router.num_chosen
        scores, source = self._place(mixture.scores), self._flat(mixture.source)
        choice = self._own_buffer(choice_size(num_experts, num_chosen))
        form = (num_experts, num_chosen)
        bias = 0
        if router.bias is not None:
            self._constants.append(router.bias)
            bias = router.bias.ctypes.data
        numbers = np.array([router.scale, router.epsilon], np.float32).view(np.int32)
        parameters = (*form, router.is_sigmoid, router.is_normalized, bias, *numbers.tolist())
        self._emit(Opcode.CHOOSE, scores, scores, choice, num_experts, *parameters)
        self._rows[-1][Field.A_STRIDE] = router.num_groups
        self._rows[-1][Field.B_STRIDE] = router.num_chosen_groups
        gate = self._multiply_chosen(mixture, mixture.gate, source, choice)
        distance = 2 if mixture.gating.is_alternating else 1
        if mixture.up:
            up = self._multiply_chosen(mixture, mixture.up, source, choice)
        else:
            gate = replace(gate, width=gate.width // 2)
            up = replace(gate, start=gate.start + (1 if distance == 2 else gate.width))
        inner = self._new_place(num_chosen, gate.width)
        gating = mixture.gating.numbers
        self._constants.append(gating)
        self._emit_heads(Opcode.GATE, gate, up, inner, gating.ctypes.data, distance)
        results = self._multiply_chosen(mixture, mixture.down, inner, choice)
        total = self._new_place(1, results.width)
        self._emit(Opcode.COMBINE, results, results, total, results.width, *form)
        self._rows[-1][Field.C] = choice.buffer
        self._places[mixture.node.get_instance_id(), 0] = total

    def _multiply_chosen(
        self, mixture: Mixture, steps: Sequence[Step], source: Place, choice: Place
    ) -> Place:
        """Adds the product of the pairs of `choice` with their experts' matrices, and with their
        biases. `source` has one row per token or, as heads, one row per pair."""
        num_experts, num_chosen = mixture.router.num_experts, mixture.router.num_chosen
        target, bias = self._new_place(num_chosen, steps[0].widths[0]), steps[0].constant
        matrix = self._store.matrix(steps)
        kind = matrix.kind
        form = (matrix.columns, kind.activation_bits)
        key = (source, choice, *form)
        if self._quantized_pairs != key:
            experts = num_experts if source.heads == 1 else 0
            self._emit_heads(Opcode.QUANTIZE, source, source, source, *form, experts)
            self._rows[-1][Field.C] = choice.buffer
            self._quantized, self._quantized_pairs = None, key
            columns = num_chosen * matrix.num_columns
            self._max_columns = max(self._max_columns, columns)
        num_blocks = matrix.num_blocks // num_experts
        size = matrix.data.nbytes // num_experts
        num_threads = -(-self._store.kernels.num_threads // num_chosen)
        self._emit(
            Opcode.EXPERTS,
            source,
            source,
            target,
            target.width,
            matrix.data.ctypes.data,
            num_blocks,
            matrix.num_columns // matrix.columns,
            matrix.columns // kind.columns_of_unit,
            kind.weight_bits,
            kind.form,
            min(max(num_threads, size // PART_SIZE), num_blocks),
            matrix.num_columns * kind.activation_bits // 8,
            num_chosen,
            size,
            num_experts,
            target.width,
            choice.buffer,
        )
        self._constants.append(matrix)
        if bias is not None:
            parameters = (bias.ctypes.data, num_experts)
            self._emit(Opcode.ADD_OF_EXPERTS, target, target, target, target.width, *parameters)
            self._rows[-1][Field.C] = choice.buffer
            self._constants.append(bias)
        return target

    def _add_normalization(self, step: Step) -> None:
        source = self._place(step.sources[0])
        target = self._new_place(source.heads, source.width)
        row = np.ones(source.width, np.float32)
        self._constants.append(row)
        bits = int(np.float32(step.epsilon).view(np.int32))
        self._emit_heads(Opcode.NORMALIZE, source, source, target, row.ctypes.data, bits)
        self._places[step.id, 0] = target

    def _add_of_one(self, node: Node, opcode: Opcode, *parameters: int) -> None:
        source = self._place(node.input_value(0))
        target = self._new_place(source.heads, source.width)
        self._emit_heads(opcode, source, source, target, *parameters)
        self._places[node.get_instance_id(), 0] = target

    def _add_of_two(self, node: Node) -> None:
        width = _shape_of(node.output(0))[1]
        key = node.get_type_name()
        constants = [folded(value.get_node()) for value in node.input_values()]
        places = [
            self._place(value)
            for value, constant in zip(node.input_values(), constants, strict=True)
            if constant is None
        ]
        rows = [one for one in node.input_values() if folded(one.get_node()) is None]
        last = node.get_output_partial_shape(0)[-1]
        if len(rows) == 2 and self._add_scaling(node, rows):
            return
        heads = max(place.heads for place in places)
        target = self._new_place(heads, width)
        for place, row in zip(places, rows, strict=True):
            is_aligned = row.get_partial_shape()[-1] == last
            if not is_aligned or place.width != width or place.heads not in (1, heads):
                raise UnsupportedNodeError(node)
        if len(places) == 2:
            if len({len(value.get_partial_shape()) for value in node.input_values()}) != 1:
                raise UnsupportedNodeError(node)
            self._emit_heads(_OPCODES_OF_TWO[key], places[0], places[1], target)
        else:
            if key not in _OPCODES_WITH_CONSTANT:
                raise UnsupportedNodeError(node)
            (constant,) = (one for one in constants if one is not None)
            is_row = constant.shape[-1:] == (width,) and last == width
            (place,) = places
            if constant.shape[-2:] == (heads, 1) and constant.size == heads > 1:  # one for a head
                constant = constant.reshape(-1).repeat(width)
                place, target = self._flat(rows[0]), replace(target, heads=1, width=heads * width)
            elif constant.size != 1 and not (constant.size == width and is_row):
                raise UnsupportedNodeError(node)
            row = np.ascontiguousarray(np.broadcast_to(constant.reshape(-1), (target.width,)))
            row = np.float32(1) / row if key == "Divide" else row
            self._constants.append(row)
            opcode = _OPCODES_WITH_CONSTANT[key]
            self._emit_heads(opcode, place, place, target, row.ctypes.data)
            target = replace(target, heads=heads, width=width)
        self._places[node.get_instance_id(), 0] = target

    def _add_scaling(self, node: Node, rows: Sequence[Any]) -> bool:
        """Adds the product of each head with a factor of its own. Returns False, and adds nothing,
        for another kind of product."""
        rows = sorted(rows, key=lambda row: int(row.get_partial_shape()[-1].get_length()))
        factor, whole = map(self._place, rows)
        lengths = [row.get_partial_shape()[-1].get_length() for row in rows]
        if node.get_type_name() != "Multiply" or lengths[0] != 1 or lengths[1] == 1:
            return False
        num_factors = factor.heads * factor.width
        is_whole = factor.heads == 1 or factor.stride == factor.width
        same_rank = len({len(row.get_partial_shape()) for row in rows}) == 1
        if num_factors not in (1, whole.heads) or not is_whole or not same_rank:
            raise UnsupportedNodeError(node)
        target = self._new_place(whole.heads, whole.width)
        factors = replace(factor, heads=num_factors, stride=1, width=1)
        self._emit_heads(Opcode.SCALE, whole, factors, target)
        self._places[node.get_instance_id(), 0] = target
        return True

    def _add_split(self, node: Node) -> None:
        axis = NodeChain(node).constant(1)
        if axis is None or not _is_width_axis(node.input_value(0), int(axis)):
            raise UnsupportedNodeError(node)
        place = self._place(node.input_value(0))
        start = place.start
        for index, output in enumerate(node.outputs()):
            heads, width = _shape_of(output)
            if heads != place.heads:
                raise UnsupportedNodeError(node)
            self._places[node.get_instance_id(), index] = replace(place, start=start, width=width)
            start += width

    def _add_slice(self, node: Node) -> None:
        chain = NodeChain(node)
        begin, step, axis = (chain.constant(index) for index in (1, 3, 4))
        is_of_width = axis is not None and _is_width_axis(node.input_value(0), int(axis))
        if begin is None or step != 1.0 or not is_of_width:
            raise UnsupportedNodeError(node)
        place = self._place(node.input_value(0))
        start = int(begin) + (place.width if begin < 0 else 0)
        heads, width = _shape_of(node.output(0))
        if heads != place.heads or not 0 <= start <= place.width - width:
            raise UnsupportedNodeError(node)
        found = replace(place, start=place.start + start, width=width)
        self._places[node.get_instance_id(), 0] = found

    def _add_concat(self, node: Node) -> None:
        rank = len(node.get_output_partial_shape(0))
        if node.get_attributes()["axis"] not in (-1, rank - 1):
            raise UnsupportedNodeError(node)
        heads, width = _shape_of(node.output(0))
        target = self._new_place(heads, width)
        start = 0
        for value in node.input_values():
            place = self._place(value)
            if place.heads != heads:
                raise UnsupportedNodeError(node)
            part = replace(target, start=start, width=place.width)
            self._emit_heads(Opcode.COPY, place, place, part)
            start += place.width
        self._places[node.get_instance_id(), 0] = target

    def _add_alias(self, node: Node) -> None:
        """Makes a reshape's output refer to the same buffer with other heads and width."""
        source = node.input_value(0)
        if node.get_type_name() == "Transpose":
            order = folded(node.input_value(1).get_node())
            shape = source.get_partial_shape()
            if order is None or not _keeps_order(order.astype(int).tolist(), shape):
                raise UnsupportedNodeError(node)
        shape, place = _row_shape(node.output(0)), self._place(source)
        if shape != (place.heads, place.width):
            place = self._flat(source)
            # A reshape may make each head a row of its own, and later merge the heads again.
            width = place.width if shape is None else shape[1]
            if place.width % width:
                raise UnsupportedNodeError(node)
            place = replace(place, heads=place.width // width, stride=width, width=width)
        self._places[node.get_instance_id(), 0] = place

    def _add_attention(self, node: Node) -> None:
        values = node.input_values()
        if len(values) < _WINDOW + 1:
            raise UnsupportedNodeError(node)
        for index in _UNUSED & frozenset(range(len(values))):
            if 0 not in values[index].get_partial_shape().to_shape():
                raise UnsupportedNodeError(node)
        chain = NodeChain(node)
        scale, window = chain.constant(_SCALE), chain.constant(_WINDOW)
        cached = _cache_name(values[3], "key_cache"), _cache_name(values[4], "value_cache")
        cache = self._cache
        queries, keys, others = (self._flat(value) for value in values[:3])
        width = cache.heads * cache.head_size
        is_known = (
            scale is not None
            and window is not None
            and keys.width == width == others.width
            and queries.width % width == 0
        )
        if not is_known or scale is None or window is None:
            raise UnsupportedNodeError(node)
        target = self._new_place(1, queries.width)
        parameters = [
            self._cache_index(*cached),
            cache.heads,
            cache.head_size,
            int(np.float32(scale).view(np.int32)),
            int(window),
            cache.block_size,
            cache.bits,
            self._sinks_of(node, queries.width // cache.head_size),
            queries.width // cache.head_size,
        ]
        self._emit(Opcode.CACHE, keys, keys, keys, width, *parameters)
        self._rows[-1][Field.C : Field.C_START + 1] = others.buffer, others.start
        for opcode in (Opcode.ATTEND, Opcode.ADD_SEGMENTS):
            self._emit(opcode, queries, queries, target, queries.width, *parameters)
        self._places[node.get_instance_id(), 0] = target

    def _sinks_of(self, node: Node, num_heads: int) -> int:
        """Returns the address of the sinks of an attention, one for each head; 0 = none."""
        if node.get_input_size() <= _SINKS or 0 in node.get_input_shape(_SINKS):
            return 0
        sinks = folded(node.input_value(_SINKS).get_node())
        if sinks is None or sinks.size != num_heads:
            raise UnsupportedNodeError(node)
        self._constants.append(sinks)
        return sinks.ctypes.data

    def _add_convolution(self, node: Node) -> None:
        source, table = self._flat(node.input_value(0)), node.input_value(1)
        weights, added = (folded(node.input_value(index).get_node()) for index in (2, 3))
        width, size = source.width, 0 if weights is None else weights.shape[-1]
        if weights is None or added is None or weights.size != width * size:
            raise UnsupportedNodeError(node)
        columns = np.ascontiguousarray(weights.reshape(width, size).T)
        row = np.ascontiguousarray(added if added.size else np.zeros(width, np.float32))
        self._constants += [columns, row]
        target = self._new_place(1, width)
        index = self._cache_index(_cache_name(table, "conv_state_table"))
        parameters = (index, size, columns.ctypes.data, row.ctypes.data, self._cache.state_bits)
        self._emit(Opcode.CONVOLVE, source, source, target, width, *parameters)
        self._places[node.get_instance_id(), 0] = target

    def _add_gated_delta(self, node: Node) -> None:
        values, attributes = node.input_values(), node.get_attributes()
        sources = [*values[:3], *values[4:6]]
        (heads, size), other, (sums, width), *each = [_shape_of(one) for one in sources]
        epsilons = {np.float32(attributes[f"{one}_l2_norm_eps"]) for one in "qk"}
        if other != (heads, size) or each != [(1, sums)] * 2 or sums % heads or len(epsilons) > 1:
            raise UnsupportedNodeError(node)
        joined = self._joined(sources)
        if joined.width != 2 * heads * size + sums * (width + 2):
            raise UnsupportedNodeError(node)
        target = self._new_place(sums, width)
        self._emit(
            Opcode.GATED_DELTA,
            joined,
            joined,
            target,
            sums * width,
            self._cache_index(_cache_name(values[3], "gated_delta_state_table")),
            heads,
            size,
            sums,
            width,
            self._cache.state_bits,
            int(epsilons.pop().view(np.int32)),
            int(attributes["use_qk_l2norm"]),
        )
        self._places[node.get_instance_id(), 0] = target

    def _add_selective_scan(self, node: Node) -> None:
        values = node.input_values()
        decays = folded(values[0].get_node())
        sources = times, keys, inputs, queries = values[1:5]
        (heads, width), (groups, size) = _shape_of(inputs), _shape_of(keys)
        joined = self._joined(sources)
        is_known = (
            decays is not None
            and decays.size == heads
            and _shape_of(times) == (1, heads)
            and _shape_of(queries) == (groups, size)
            and heads % groups == 0
            and joined.width == heads * (1 + width) + 2 * groups * size
        )
        if not is_known or decays is None:
            raise UnsupportedNodeError(node)
        decays = np.ascontiguousarray(decays)
        self._constants.append(decays)
        target = self._new_place(heads, width)
        self._emit(
            Opcode.SELECTIVE_SCAN,
            joined,
            joined,
            target,
            heads * width,
            self._cache_index(_cache_name(values[5], "selective_ssm_state_table")),
            heads,
            width,
            groups,
            size,
            self._cache.state_bits,
            decays.ctypes.data,
        )
        self._places[node.get_instance_id(), 0] = target

    def _joined(self, sources: Sequence[Any]) -> Place:
        """Returns a copy of the numbers of some outputs, one after another."""
        places = [self._flat(one) for one in sources]
        joined = self._new_place(1, sum(place.width for place in places))
        start = 0
        for place in places:
            part = replace(joined, start=start, width=place.width)
            self._emit_heads(Opcode.COPY, place, place, part)
            start += place.width
        return joined

    def _cache_index(self, *names: str) -> int:
        """Registers new caches, and returns the index of the step field with the first one's
        address."""
        self.caches += names
        return StepField.CACHES + len(self.caches) - len(names)

    def _new_place(self, heads: int, width: int) -> Place:
        place = self._own_buffer(heads * width)
        return replace(place, heads=heads, stride=width, width=width)

    def _flat(self, port: Any) -> Place:
        """Returns a place with one contiguous part per token. Copies the values if they are not
        contiguous."""
        place = self._place(port)
        if place.heads > 1 and place.stride != place.width:
            target = self._new_place(place.heads, place.width)
            self._emit_heads(Opcode.COPY, place, place, target)
            self._places[port_of(port)] = place = target
        width = place.heads * place.width
        return replace(place, heads=1, stride=width, width=width)

    def _emit_heads(self, opcode: Opcode, a: Place, b: Place, out: Place, *parameters: int) -> None:
        heads, width = out.heads, out.width
        self._emit(opcode, a, b, out, width, *parameters)
        row = self._rows[-1]
        row[Field.HEADS] = heads
        row[Field.A_STRIDE] = a.stride if a.heads > 1 else 0
        row[Field.B_STRIDE] = b.stride if b.heads > 1 else 0
        row[Field.OUT_STRIDE] = out.stride


def _shape_of(output: Any) -> tuple[int, int]:
    shape = _row_shape(output)
    if shape is None:
        raise UnsupportedNodeError(output.get_node())
    return shape


def _cache_name(output: Any, kind: str) -> str:
    """Returns the name of the model input that is a cache, or state table, of this kind. Raises
    UnsupportedNodeError if the output is not such an input."""
    names = output.get_names() if output.get_node().get_type_name() == "Parameter" else ()
    for name in names:
        if name.startswith(f"{kind}."):
            return str(name)
    raise UnsupportedNodeError(output.get_node())


def _keeps_order(order: Sequence[int], shape: Any) -> bool:
    """Returns whether a transposition keeps the token axis first, and moves only axes of length
    1."""
    dynamic = [axis for axis in range(len(shape)) if shape[axis].is_dynamic]
    if dynamic[:1] != [0] or len(dynamic) > 2:
        return False
    lengths = [1 if axis in dynamic else shape[axis].get_length() for axis in range(len(shape))]
    moved = [axis for axis in order if axis != 0 and lengths[axis] != 1]
    return order[0] == 0 and moved == sorted(moved)
