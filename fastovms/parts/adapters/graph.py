"""Adds branches for low-rank adapters (LoRA) to the graph of a model, and runs steps with them.

One step may have rows of several adapters and rows without an adapter. A copy of the graph has a
branch `y + ((x A') * m) B` at each matrix that an adapter changes. A and B hold the matrices of all
adapters one after another, and the mask m is 1 at the ranks of a row's adapter. A, B and m are
graph inputs, so adapters are loaded and unloaded without a compilation. The inputs of a step are
views of A and B from the first to the last adapter of the step's rows. Steps without an adapter use
the original graph.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

from fastovms.engine.model.compilation import compile_model
from fastovms.engine.model.kv_cache import HostCache, cache_layout
from fastovms.engine.model.model import Floats, PagedModel, RawLogits, StepRunner
from fastovms.engine.model.paging import vocabulary_projection
from fastovms.engine.model.step_inputs import StepInputs, StepLayout

if TYPE_CHECKING:
    from fastovms.engine.kernels.low_rank import PackedAdapter, PackedAdapters

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""

RANK_STEP: Final = 8
"""Ranks are padded with zeros to a multiple of this, so that the other adapters of a step do not
change the summation order, and thus the rounding, of an adapter's products."""

_MASK: Final = "adapter_mask"
_DOWN: Final = "adapter_down."
_UP: Final = "adapter_up."

_DECOMPRESSION: Final = frozenset({"Convert", "Multiply", "Reshape", "Subtract"})
_TIMES_TRANSPOSED: Final = {"transpose_a": False, "transpose_b": True}

_OF_MATMUL: Final = re.compile(r"__module\.(.+)/(?:aten|ov_ext)::linear/")
_OF_WEIGHTS: Final = re.compile(r"(?:self\.)?(.+)\.weight(?:_compressed|/.*)?$")
_WRAPPER: Final = re.compile(r"^model\.(?=(?:model|transformer)\.)")
"""The prefix that optimum-intel adds to the names of some models' modules."""

_OF_GGUF: Final = re.compile(r"blk\.(\d+)\.(\w+)$")

_GGUF_MODULES: Final[Mapping[str, str]] = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FUSED_UP: Final = "mlp.gate_up_proj"


class LowRank(NamedTuple):
    """The low-rank product that an adapter adds to a weight matrix: `up` transposed, times `down`.

    Attributes:
        down: f32 [rank, columns].
        up: f32 [rank, rows], multiplied by the adapter's scale.
    """

    down: Floats
    up: Floats


class MatrixShape(NamedTuple):
    """The shape of a weight matrix of the model."""

    rows: int
    columns: int


def module_shapes(model: ov.Model) -> dict[str, MatrixShape]:
    """Returns the shapes of a paged model's weight matrices that adapters may change, by the
    modules' names in transformers."""
    return {
        name: MatrixShape(*node.input_value(1).get_shape())
        for name, node in find_modules(model).items()
    }


def find_modules(model: ov.Model) -> dict[str, Node]:
    """Returns the MatMul nodes of the matrices that adapters may change, by module name, in the
    order of `module_shapes`."""
    head = vocabulary_projection(model)
    found: dict[str, Node] = {}
    fused_layers: set[str] = set()
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul" or not _is_adaptable(node):
            continue
        if head is not None and node.get_instance_id() == head.get_instance_id():
            continue
        name = _module_name(node)
        gguf = _OF_GGUF.match(name)
        if gguf is not None:
            module = _GGUF_MODULES.get(gguf[2], gguf[2])
            name = f"model.layers.{gguf[1]}.{module}"
            if module == "self_attn.qkv_proj":
                fused_layers.add(gguf[1])
            elif module == "mlp.up_proj" and gguf[1] in fused_layers:
                name = f"model.layers.{gguf[1]}.{_FUSED_UP}"
        if name:
            found[name] = node
    return found


def _is_adaptable(node: Node) -> bool:
    """Returns whether a MatMul multiplies token rows with a static weight matrix."""
    rows, weights = node.get_input_partial_shape(0), node.get_input_partial_shape(1)
    if node.get_attributes() != _TIMES_TRANSPOSED or weights.is_dynamic or len(weights) != 2:
        return False
    if rows.rank.is_dynamic or rows[-1].is_dynamic or len(rows) not in (2, 3):
        return False
    return len(rows) == 2 or bool(rows[1].is_static and rows[1] == 1)


def _module_name(node: Node) -> str:
    """Returns the name of the module that a MatMul belongs to; "" = the name is unknown, or no
    input is a weight."""
    found = _OF_MATMUL.match(node.get_friendly_name())
    constant = node.input_value(1).get_node()
    while constant.get_type_name() in _DECOMPRESSION:
        constant = constant.input_value(0).get_node()
    if constant.get_type_name() != "Constant":
        return ""
    found = found or _OF_WEIGHTS.match(constant.get_friendly_name())
    return "" if found is None else _WRAPPER.sub("", found[1])


def _add_branches(model: ov.Model, modules: Sequence[str]) -> None:
    """Adds the adapter branches of some modules to a paged model in place."""
    nodes = find_modules(model)
    mask = _parameter(_MASK, [-1, -1])
    parameters = [mask]
    rows_of: dict[tuple[int, int], Node] = {}
    for index, module in enumerate(modules):
        node = nodes[module]
        source = node.input_value(0)
        num_rows, num_columns = node.input_value(1).get_shape()
        down = _parameter(f"{_DOWN}{index}", [-1, num_columns])
        up = _parameter(f"{_UP}{index}", [-1, num_rows])
        parameters += [down, up]
        # OpenVINO would compute a product of three dimensions token by token.
        port = source.get_node().get_instance_id(), source.get_index()
        rows = rows_of.get(port)
        if rows is None:
            shape = opset13.constant(np.array([-1, num_columns]))
            rows = rows_of[port] = opset13.reshape(source, shape, False)
        inner = opset13.multiply(opset13.matmul(rows, down, False, True), mask)
        change = opset13.matmul(inner, up, False, False)
        if len(node.get_output_partial_shape(0)) == 3:
            change = opset13.unsqueeze(change, opset13.constant(1))
        targets = node.output(0).get_target_inputs()
        total = opset13.add(node, change)
        for target in targets:
            target.replace_source_output(total.output(0))
    model.add_parameters(parameters)
    model.validate_nodes_and_infer_types()


def _parameter(name: str, shape: list[int]) -> Node:
    parameter = opset13.parameter(shape, ov.Type.f32, name=name)
    parameter.output(0).set_names({name})
    return parameter


class _Member(NamedTuple):
    """The ranks of one adapter in the stack, from `first` to before `end`, and its weights packed
    for the decode kernels; None = the kernels do not support the adapter."""

    number: int
    first: int
    end: int
    packed: PackedAdapter | None


@dataclass(frozen=True)
class AdapterStack:
    """The weights of all loaded adapters of a model. Instances are immutable.

    Attributes:
        shapes: the shapes of the modules that any adapter changes.
        down: one f32 [ranks, columns] for each module.
        up: one f32 [ranks, rows] for each module.
    """

    shapes: Mapping[str, MatrixShape]
    down: Sequence[Floats] = ()
    up: Sequence[Floats] = ()
    members: tuple[_Member, ...] = ()

    @property
    def num_ranks(self) -> int:
        """The number of rows in each matrix: the sum of the adapters' ranks."""
        return self.members[-1].end if self.members else 0

    @property
    def num_bytes(self) -> int:
        """The bytes of all matrices, including the packed ones."""
        packed = sum(one.num_bytes for one in self.packed.values())
        return packed + sum(matrix.nbytes for matrix in (*self.down, *self.up))

    @property
    def packed(self) -> PackedAdapters:
        """The packed weights of all adapters, for the decode kernels; empty = the kernels do not
        support adapters."""
        return {one.number: one.packed for one in self.members if one.packed is not None}

    def with_adapter(
        self, number: int, weights: Mapping[str, LowRank], packed: PackedAdapter | None = None
    ) -> AdapterStack:
        """Returns a new stack that also has the adapter, in last place.

        Args:
            number: the adapter's number.
            weights: the adapter's matrices by module name.
            packed: the same matrices packed for the decode kernels; None = not packed.
        """
        rank = max(len(pair.down) for pair in weights.values())
        rank += -rank % RANK_STEP
        shapes = dict(self.shapes)
        for name, pair in weights.items():
            shapes.setdefault(name, MatrixShape(pair.up.shape[1], pair.down.shape[1]))
        start, end = self.num_ranks, self.num_ranks + rank
        down = [np.zeros((end, shape.columns), np.float32) for shape in shapes.values()]
        up = [np.zeros((end, shape.rows), np.float32) for shape in shapes.values()]
        for larger, matrices in ((down, self.down), (up, self.up)):
            for matrix, before in zip(larger, matrices, strict=False):
                matrix[:start] = before
        for index, name in enumerate(shapes):
            if name in weights:
                own = weights[name]
                down[index][start : start + len(own.down)] = own.down
                up[index][start : start + len(own.up)] = own.up
        member = _Member(number, start, end, packed)
        return AdapterStack(shapes, down, up, (*self.members, member))

    def without(self, number: int) -> AdapterStack:
        """Returns a new stack without one adapter. It keeps all modules, because the compiled graph
        has inputs for them."""
        first, end = next((m.first, m.end) for m in self.members if m.number == number)
        rows = np.r_[0:first, end : self.num_ranks]
        members = []
        for member in self.members:
            back = end - first if member.first >= end else 0
            if member.number != number:
                members.append(member._replace(first=member.first - back, end=member.end - back))
        return AdapterStack(
            self.shapes,
            [matrix[rows] for matrix in self.down],
            [matrix[rows] for matrix in self.up],
            tuple(members),
        )


class AdapterRunner(StepRunner):
    """Runs steps in which some sequences have adapters. `compiled` is the graph with branches for
    the modules of the stack."""

    def __init__(self, compiled: ov.CompiledModel, stack: AdapterStack) -> None:
        super().__init__(compiled, is_on_gpu=False)
        self._range = (0, 0)
        self.use(stack)

    def use(self, stack: AdapterStack) -> None:
        """Replaces the adapters from the next step on; the new stack must have the same modules.
        Must not be called during a step."""
        self.stack = stack
        self._set_range(0, stack.num_ranks)

    def infer(self, inputs: StepInputs) -> RawLogits:
        """Returns logits; see `Model.infer`."""
        members = {member.number: member for member in self.stack.members}
        own = [members[number] if number else None for number in inputs.adapters.tolist()]
        first = min(member.first for member in own if member is not None)
        end = max(member.end for member in own if member is not None)
        if (first, end) != self._range:
            self._set_range(first, end)
        mask = np.zeros((len(inputs.input_ids), end - first), np.float32)
        begins = inputs.subsequence_begins.tolist()
        for begin, stop, member in zip(begins, begins[1:], own, strict=False):
            if member is not None:
                mask[begin:stop, member.first - first : member.end - first] = 1
        self._request.set_tensor(_MASK, ov.Tensor(mask, shared_memory=True))
        return super().infer(inputs)

    def _set_range(self, first: int, end: int) -> None:
        """Sets the graph's A and B inputs to views of the stack's ranks from `first` to before
        `end`."""
        self._range = (first, end)
        for name, matrices in ((_DOWN, self.stack.down), (_UP, self.stack.up)):
            for index, matrix in enumerate(matrices):
                tensor = ov.Tensor(matrix[first:end], shared_memory=True)
                self._request.set_tensor(f"{name}{index}", tensor)


def compile_adapters(model: PagedModel, stack: AdapterStack) -> AdapterRunner:
    """Compiles the graph with branches for the stack's modules and runs a first step, in which
    OpenVINO repacks weights. Takes seconds; thread-safe. Raises RuntimeError if the device does not
    support the graph, or the graph cannot share the KV cache."""
    graph = model.graph.model.clone()
    _add_branches(graph, list(stack.shapes))
    compiled = compile_model(ov.Core(), graph, model.device, model.precisions.large)
    if cache_layout(compiled) != model.cache_layout:
        raise RuntimeError("the graph with adapters cannot share the KV cache")
    runner = AdapterRunner(compiled, stack)
    number = stack.members[0].number
    spare = HostCache(model.cache_inputs, 1, 0 if model.states is None else 2)
    runner.set_tensors(spare.tensors)
    if model.states is None:
        layout = StepLayout(model.block_size)
        token_ids, table = array("q", (0, 0)), array("i", (0,))
        last = layout.add(token_ids, 0, 2, table, adapter=number)
        runner.infer(layout.finish(array("q", (last,))).in_pages(model.num_pages))
    return runner


def check_stack(members: Iterable[int], stack: AdapterStack) -> None:
    """Asserts that a stack has exactly the adapters with these numbers, without gaps between their
    ranks."""
    assert sorted(members) == sorted(member.number for member in stack.members)
    end = 0
    for member in stack.members:
        assert member.first == end, "adapters overlap, or have a gap between them"
        end = member.end
    arrays: list[NDArray[np.float32]] = [*stack.down, *stack.up]
    assert all(len(matrix) == end for matrix in arrays)
