"""Finds the parts of a graph that the kernels can compute: matrix products, and the row-wise
operations between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from fastovms.engine.kernels.instructions import Opcode
from fastovms.engine.kernels.matrices import CompressedWeights, packed_kind, read_weights
from fastovms.engine.kernels.products import ProductKind

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""

Port = tuple[int, int]
"""An output of a node: the node's instance id, and the index of the output."""

_NUMBERS: Final = frozenset(
    {ov.Type.f32, ov.Type.f16, ov.Type.bf16, ov.Type.i8, ov.Type.u8, ov.Type.i32, ov.Type.i64}
)
_TIMES_TRANSPOSED: Final = {"transpose_a": False, "transpose_b": True}
OPCODES_OF_TWO: Final = {"Add": Opcode.ADD, "Multiply": Opcode.MULTIPLY}
_FEW_ROWS: Final = 128
"""The maximum number of rows of a matrix that is not quantized and does not belong to a router,
such as one row per head."""

_FOLDED: Final[dict[str, Callable[..., Any]]] = {
    "Add": np.add,
    "Equal": np.equal,
    "Multiply": np.multiply,
    "Subtract": np.subtract,
}
OPCODES_WITH_CONSTANT: Final = {
    "Add": Opcode.ADD_CONSTANT,
    "Multiply": Opcode.MULTIPLY_CONSTANT,
}
GELU: Final = {"TANH": Opcode.GELU_TANH, "ERF": Opcode.GELU_ERF}


class Weights(NamedTuple):
    """Weights that the kernels can multiply.

    Attributes:
        compressed: the weights as in the graph.
        kind: the variant of the multiplication code.
    """

    compressed: CompressedWeights
    kind: ProductKind


@dataclass(frozen=True, slots=True)
class Step:
    """A node of the graph, or several nodes fused into one operation.

    Attributes:
        node: the last of the nodes.
        opcode: None = a split, which needs no instruction.
        sources: the outputs that are its input rows.
        widths: the row width of each output, in values.
        inner: the instance ids of the other fused nodes.
        constant: f32, a row to add or multiply, or the matrix of a router.
        epsilon: the epsilon of an RMS norm.
        weights: the weights of a matrix product.
    """

    node: Node
    opcode: Opcode | None
    sources: tuple[Any, ...]
    widths: tuple[int, ...]
    inner: frozenset[int] = frozenset()
    constant: NDArray[np.float32] | None = None
    epsilon: float = 0.0
    weights: Weights | None = None

    @property
    def id(self) -> int:
        found: int = self.node.get_instance_id()
        return found


@dataclass(slots=True)
class Segment:
    """Steps that are computed by one call, in topological order.

    Attributes:
        inputs: outputs of other nodes that are the segment's input rows.
        outputs: outputs of the segment's nodes that other nodes use.
    """

    steps: list[Step]
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)


def port_of(output: Any) -> Port:
    """Returns the key of an output: its node's instance id, and its index."""
    return output.get_node().get_instance_id(), output.get_index()


def find_segments(model: ov.Model, instructions: str) -> list[Segment]:
    """Returns the segments of a paged model that have at least one matrix product."""
    nodes = model.get_ordered_ops()
    steps = _find_steps(nodes, instructions)
    levels = _levels(nodes, steps)
    groups: dict[int, list[Step]] = {}
    for root, step in _with_roots(steps, levels):
        groups.setdefault(root, []).append(step)
    found = [Segment(group) for group in groups.values()]
    segments = [one for one in found if any(step.weights is not None for step in one.steps)]
    for segment in segments:
        _find_borders(segment)
    return segments


def _find_steps(nodes: Sequence[Node], instructions: str) -> dict[int, Step]:
    """Returns the steps that the kernels support, by the id of their last node."""
    steps: dict[int, Step] = {}
    for node in nodes:
        step = _step_of(node, instructions)
        if step is not None:
            steps[step.id] = step
    inner = frozenset[int]().union(*(step.inner for step in steps.values()))
    for node in reversed(nodes):
        step = steps.get(node.get_instance_id())
        if step is not None and step.opcode is None:
            consumers = {
                target.get_node().get_instance_id()
                for output in node.outputs()
                for target in output.get_target_inputs()
            }
            # OpenVINO computes the split, because others use its input.
            if not consumers <= steps.keys() | inner:
                del steps[step.id]
    return {key: step for key, step in steps.items() if key not in inner}


def _step_of(node: Node, instructions: str) -> Step | None:
    """Returns the step that computes a node, or None if the kernels do not support the node."""
    kind = node.get_type_name()
    widths = tuple(map(_width, node.outputs()))
    if not widths or None in widths:
        return None
    known = tuple(width for width in widths if width is not None)
    if kind == "MatMul":
        return product_of(node, known, instructions)
    if kind in OPCODES_OF_TWO:
        return normalization_of(node, known, _width) or _binary_step(node, known)
    if kind == "Swish" and (node.get_input_size() == 1 or NodeChain(node).has_constant(1, 1.0)):
        return Step(node, Opcode.SWISH, (node.input_value(0),), known)
    if kind == "Gelu":
        opcode = GELU.get(str(node.get_attributes().get("approximation_mode", "ERF")).upper())
        return None if opcode is None else Step(node, opcode, (node.input_value(0),), known)
    if kind == "VariadicSplit" and is_last_axis(node):
        return Step(node, None, (node.input_value(0),), known)
    return None


def _width(output: Any) -> int | None:
    """Returns the row width of an output that has one f32 row per token, or None for other
    outputs."""
    shape = output.get_partial_shape()
    if shape.rank.is_dynamic or output.get_element_type() != ov.Type.f32:
        return None
    if len(shape) not in (2, 3) or shape[-1].is_dynamic:
        return None
    if len(shape) == 3 and not _is_one(shape):
        return None
    width: int = shape[-1].get_length()
    return width if shape[0].is_dynamic or len(shape) == 3 else None


def _is_one(shape: Any) -> bool:
    """Returns whether the axis after the token axis has length 1. The exported graph has the tokens
    on that axis, and some nodes compute its length."""
    if shape[1].is_dynamic:
        return bool(shape[0].is_dynamic)
    return bool(shape[1].get_length() == 1)


def product_of(node: Node, widths: tuple[int, ...], instructions: str) -> Step | None:
    """Returns the step of a product with compressed weights, or None if the kernels do not support
    it. `widths` are the row widths of the node's outputs."""
    if node.get_attributes() != _TIMES_TRANSPOSED or _width(node.input_value(0)) is None:
        return None
    compressed = read_weights(node.input_value(1).get_node())
    if compressed is None or compressed.num_columns != _width(node.input_value(0)):
        return None
    kind = packed_kind(compressed, instructions)
    if kind is None:
        return None
    weights = Weights(compressed, kind)
    return Step(node, Opcode.PRODUCT, (node.input_value(0),), widths, weights=weights)


def float_product_of(node: Node) -> Step | None:
    """Returns the step of a product with few rows of floats, such as those of a router or a gate;
    None = another product."""
    shape, attributes = node.get_input_partial_shape(1), node.get_attributes()
    if shape.is_dynamic or len(shape) != 2 or attributes != _TIMES_TRANSPOSED:
        return None
    matrix = folded(node.input_value(1).get_node()) if shape[0].get_length() <= _FEW_ROWS else None
    if matrix is None:
        return None
    matrix = np.ascontiguousarray(matrix)
    source = (node.input_value(0),)
    return Step(node, Opcode.FLOAT_PRODUCT, source, (len(matrix),), constant=matrix)


def _binary_step(node: Node, widths: tuple[int, ...]) -> Step | None:
    """Returns the step of an element-wise sum or product of two rows, or of a row and a constant;
    None = not supported."""
    values = node.input_values()
    rows = [value for value in values if _width(value) == widths[0]]
    constants = [folded(value.get_node()) for value in values]
    for value, constant in zip(reversed(values), constants, strict=True):
        if constant is None or _width(value) != widths[0]:
            continue
        if constant.size not in (1, widths[0]) or constant.shape[-1:] not in (
            (),
            (1,),
            (widths[0],),
        ):
            return None
        row = np.ascontiguousarray(np.broadcast_to(constant.reshape(-1), widths))
        opcode = OPCODES_WITH_CONSTANT[node.get_type_name()]
        return Step(node, opcode, (value,), widths, constant=row)
    if len(rows) != 2 or any(constant is not None for constant in constants):
        return None
    if {len(value.get_partial_shape()) for value in rows} != {
        len(node.get_output_partial_shape(0))
    }:
        return None
    return Step(node, OPCODES_OF_TWO[node.get_type_name()], tuple(rows), widths)


def folded(node: Node) -> NDArray[np.float32] | None:
    """Returns the value, f32 in the shape of the node's output, of a constant or of a node that
    converts, reshapes or combines constants. Returns None for other nodes."""
    kind = node.get_type_name()
    if kind == "Constant":
        if node.get_element_type() not in _NUMBERS:
            return None
        values: NDArray[np.float32] = node.get_data(dtype=np.float32)
        return values
    if kind in ("Convert", "ConvertLike"):
        return folded(node.input_value(0).get_node())
    if kind == "Reshape":
        whole = folded(node.input_value(0).get_node())
        return None if whole is None else whole.reshape(node.get_output_shape(0))
    if kind in _FOLDED:
        first, second = (folded(node.input_value(index).get_node()) for index in (0, 1))
        if first is None or second is None:
            return None
        return np.asarray(_FOLDED[kind](first, second), np.float32)
    return None


def normalization_of(
    node: Node, widths: tuple[int, ...], width_of: Callable[[Any], int | None]
) -> Step | None:
    """Returns the step of an RMS norm that ends with this multiplication, or None. `width_of`
    returns the row width of an output, or None if the output has no rows."""
    if node.get_type_name() != "Multiply":
        return None
    for index in (0, 1):
        source, inverse = node.input_value(index), node.input_value(1 - index)
        if width_of(source) != widths[0]:
            continue
        chain = NodeChain(inverse.get_node())
        if chain.type == "Divide":
            if not chain.has_constant(0, 1.0):
                continue
            chain.descend(1)
            if chain.type != "Sqrt":
                continue
            chain.descend(0)
        elif chain.type == "Power" and chain.has_constant(1, -0.5):
            chain.descend(0)
        else:
            continue
        if chain.type != "Add":
            continue
        side = 1 if chain.constant(1) is not None else 0
        epsilon = chain.constant(side)
        chain.descend(1 - side)
        if epsilon is None or chain.type != "ReduceMean" or not is_last_axis(chain.node):
            continue
        chain.descend(0)
        square = chain.type == "Power" and chain.has_constant(1, 2.0)
        square |= (
            chain.type == "Multiply" and len({port_of(v) for v in chain.node.input_values()}) == 1
        )
        if not square or port_of(chain.node.input_value(0)) != port_of(source):
            continue
        if not all(len(one.output(0).get_target_inputs()) == 1 for one in chain.nodes):
            continue
        inner = frozenset(one.get_instance_id() for one in chain.nodes)
        return Step(node, Opcode.NORMALIZE, (source,), widths, inner, epsilon=epsilon)
    return None


class NodeChain:
    """A walk through a graph from a node to inputs of inputs."""

    def __init__(self, node: Node) -> None:
        self.nodes = [node]

    @property
    def node(self) -> Node:
        return self.nodes[-1]

    @property
    def type(self) -> str:
        return str(self.node.get_type_name())

    def descend(self, index: int) -> None:
        """Moves to the node of an input of the current node."""
        self.nodes.append(self.node.input_value(index).get_node())

    def constant(self, index: int) -> float | None:
        """Returns the value of an input that is a scalar constant, or None for another input."""
        found = folded(self.node.input_value(index).get_node())
        return float(found.reshape(-1)[0]) if found is not None and found.size == 1 else None

    def has_constant(self, index: int, value: float) -> bool:
        """Returns whether an input of the current node is the scalar constant `value`."""
        return self.constant(index) == value


def is_last_axis(node: Node) -> bool:
    """Returns whether a node's second input names the last axis of its first input."""
    axis = node.input_value(1).get_node()
    if axis.get_type_name() != "Constant":
        return False
    values = axis.get_data(dtype=np.int64).reshape(-1).tolist()
    return values in ([-1], [len(node.get_input_partial_shape(0)) - 1])


def _levels(nodes: Sequence[Node], steps: dict[int, Step]) -> dict[int, int]:
    """Returns for each node the largest number of alternations between supported and other nodes on
    the paths to it. Steps of one level can be computed by one call."""
    levels: dict[int, int] = {}
    for node in nodes:
        key = node.get_instance_id()
        step = steps.get(key)
        sources = node.input_values() if step is None else step.sources
        level = 0
        for source in sources:
            before = source.get_node().get_instance_id()
            level = max(level, levels[before] + (step is None and before in steps))
        levels[key] = level
    return levels


def _with_roots(steps: dict[int, Step], levels: dict[int, int]) -> Iterator[tuple[int, Step]]:
    """Yields each step with the id of a representative of its group: connected steps of one
    level."""
    parents = {key: key for key in steps}

    def root_of(key: int) -> int:
        while parents[key] != key:
            parents[key] = key = parents[parents[key]]
        return key

    for key, step in steps.items():
        for source in step.sources:
            before = source.get_node().get_instance_id()
            if before in steps and levels[before] == levels[key]:
                parents[root_of(key)] = root_of(before)
    for key, step in steps.items():
        yield root_of(key), step


def _find_borders(segment: Segment) -> None:
    """Sets a segment's inputs and outputs from its steps."""
    own = {step.id for step in segment.steps}
    inside = own.union(*(step.inner for step in segment.steps))
    inputs: dict[Port, Any] = {}
    for step in segment.steps:
        for source in step.sources:
            if source.get_node().get_instance_id() not in own:
                inputs[port_of(source)] = source
        for output in step.node.outputs():
            consumers = (t.get_node().get_instance_id() for t in output.get_target_inputs())
            if any(consumer not in inside for consumer in consumers):
                segment.outputs.append(output)
    segment.inputs = list(inputs.values())
