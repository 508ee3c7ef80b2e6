"""Builds an OpenVINO graph from a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13
from openvino.op import util
from openvino.utils.node_factory import NodeFactory

from fastovms.errors import ConfigurationError
from fastovms.gguf.layers import Experts, mixture, short_convolution
from fastovms.gguf.reader import (
    BF16,
    F16,
    ExpertSettings,
    GgufFile,
    Hyperparameters,
    NumberGroups,
    RopeSettings,
    TensorInfo,
    TensorType,
)

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""

_BLOCKS_AT_ONCE: Final = 2**15
"""The number of blocks that are unpacked at a time; it bounds the memory for unpacking."""

_FLOATS: Final = {"F32": ov.Type.f32, "F16": ov.Type.f16, "BF16": ov.Type.bf16}
_INTEGERS: Final = {
    (4, "int8"): ov.Type.i4,
    (4, "uint8"): ov.Type.u4,
    (8, "int8"): ov.Type.i8,
    (8, "uint8"): ov.Type.u8,
}
"""OpenVINO's integer types, by the number of bits and the dtype of `NumberGroups.integers`."""


class Weights:
    """The tensors of a file as nodes of a graph. Records which tensors have been used. In a trial,
    the shapes of matrices are checked, but their data is not read: their nodes are parameters.

    OpenVINO's CPU plugin computes with compressed weights if a graph has them as
    `(Convert(integers) - zero_points) * scales`. Scales and zero points are f32: the plugin
    converts them to f32 anyway, and f16 would round the scales of k-quants, which are products.
    """

    def __init__(self, file: GgufFile, *, is_trial: bool = False) -> None:
        self._file = file
        self._is_trial = is_trial
        self._used: set[str] = set()
        self._nodes: dict[str, Node] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._file.tensors

    def unused(self) -> list[str]:
        """Returns the names of tensors that were not used."""
        return sorted(self._file.tensors.keys() - self._used)

    def shape(self, name: str, num_axes: int = 2) -> tuple[int, ...]:
        """Returns the shape of a tensor with `num_axes` axes. Raises ConfigurationError if the
        tensor is missing or has another number of axes."""
        info = self._file.tensors.get(name)
        if info is None:
            raise ConfigurationError(f"the tensor {name} is missing")
        if len(info.shape) != num_axes:
            raise ConfigurationError(
                f"the tensor {name} must have {num_axes} dimensions, not {len(info.shape)}"
            )
        return info.shape

    def floats(self, name: str, *shape: int) -> NDArray[np.float32]:
        """Returns the values of a small tensor: a norm, a bias or frequencies. Raises
        ConfigurationError if the tensor is missing, has another shape, or is quantized."""
        info = self._info(name, shape)
        if info.type.bits:
            raise ConfigurationError(
                f"the tensor {name} must have floating-point numbers, not {info.type.name}"
            )
        rows = self._file.read_rows(name)
        if info.type is BF16:
            values = (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = rows.view(np.float16 if info.type is F16 else np.float32)
        return values.astype(np.float32).reshape(shape)

    def matrix(self, name: str, *shape: int, order: NDArray[np.int64] | None = None) -> Node:
        """Returns a node with the f32 values of a matrix, [rows, columns], or of all experts'
        matrices, [experts, rows, columns]. Repeated calls return the same node. Raises
        ConfigurationError if the tensor is missing or has another shape.

        Args:
            order: the indices of the file's rows in the order to return; None = as in the file.
        """
        if name not in self._nodes:
            info = self._info(name, shape)
            if self._is_trial:
                self._nodes[name] = opset13.parameter(shape, np.float32)
            else:
                rows = self._file.read_rows(name)
                rows = rows if order is None else rows[order]
                self._nodes[name] = _matrix(rows, info.shape, info.type, name)
        return self._nodes[name]

    def _info(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        info = self._file.tensors.get(name)
        if info is None:
            raise ConfigurationError(f"the tensor {name} is missing")
        if info.shape != shape:
            raise ConfigurationError(
                f"the tensor {name} must have the shape {list(shape)}, not {list(info.shape)}"
            )
        self._used.add(name)
        return info


def constant(values: NDArray[Any]) -> Node:
    """Returns a constant node with the shape, type and values of an array."""
    return opset13.constant(values)


def _matrix(rows: NDArray[np.uint8], shape: tuple[int, ...], kind: TensorType, name: str) -> Node:
    if kind.unpack is not None:
        return _compressed(rows, shape, kind, kind.unpack, name)
    node = _constant(np.ascontiguousarray(rows), shape, _FLOATS[kind.name], name)
    return node if kind.name == "F32" else opset13.convert(node, "f32")


def _compressed(
    rows: NDArray[np.uint8],
    shape: tuple[int, ...],
    kind: TensorType,
    unpack: Callable[[NDArray[np.uint8]], NumberGroups],
    name: str,
) -> Node:
    """Returns a matrix as 4-bit or 8-bit integers, with one scale per group."""
    integers, scales, zero_points = [], [], []
    blocks = rows.reshape(-1, kind.block_bytes)
    for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
        groups = unpack(np.ascontiguousarray(blocks[start : start + _BLOCKS_AT_ONCE]))
        integers.append(_packed(groups.integers, kind.bits))
        scales.append(groups.scales.reshape(-1))
        if groups.zero_points is not None:
            zero_points.append(groups.zero_points.reshape(-1))
    element_type = _INTEGERS[kind.bits, str(groups.integers.dtype)]
    size = groups.integers.shape[-1]
    one_each = (*shape[:-1], shape[-1] // size, 1)
    values = _constant(np.concatenate(integers), (*one_each[:-1], size), element_type, name)
    node = opset13.convert(values, "f32")
    if zero_points:
        node = opset13.subtract(node, constant(np.concatenate(zero_points).reshape(one_each)))
    node = opset13.multiply(node, constant(np.concatenate(scales).reshape(one_each)))
    return opset13.reshape(node, constant(np.array(shape, np.int64)), False)


def _packed(integers: NDArray[np.uint8] | NDArray[np.int8], bits: int) -> NDArray[np.uint8]:
    """Returns 8-bit integers unchanged, and 4-bit integers two per byte, the first in the lower
    half."""
    values = integers.reshape(-1).view(np.uint8)
    if bits == 8:
        return values
    pairs = values.view("<u2")
    return (pairs & np.uint16(0x0F) | pairs >> np.uint16(4) & np.uint16(0xF0)).astype(np.uint8)


def _constant(data: NDArray[Any], shape: tuple[int, ...], element_type: ov.Type, name: str) -> Node:
    node = ov.op.Constant(ov.Tensor(data, ov.Shape(shape), element_type), shared_memory=False)
    node.set_friendly_name(name)
    return node


Periods = NDArray[np.float32]

_FREQUENCY_FACTORS: Final = "rope_freqs.weight"
_LONG_FACTORS: Final = "rope_factors_long.weight"
_SHORT_FACTORS: Final = "rope_factors_short.weight"


class Rotation(NamedTuple):
    """The angles of rotary position embedding (RoPE): a position divided by `periods`.

    Attributes:
        periods: the number of positions for an angle of 1, for each pair of dimensions.
        long_periods: the periods of sequences longer than `original_context`, or None.
        magnitude: the factor of cosines and sines.
    """

    periods: Periods
    long_periods: Periods | None
    original_context: int
    magnitude: float


class CosSin(NamedTuple):
    """Cosines and sines, nodes [batch, 1, tokens, rotated dimensions]."""

    cos: Node
    sin: Node


def rotation_of(parameters: Hyperparameters, weights: Weights) -> Rotation:
    """Returns the RoPE parameters of the layers without a sliding window. Raises ConfigurationError
    if tensors with frequency factors are missing or have another shape. Computes in f64, as
    llama.cpp does (`ggml_rope_ext`)."""
    rope = parameters.rope
    size = rope.num_dimensions // 2
    periods = _unscaled(rope.base, rope.num_dimensions)
    if rope.scaling == "longrope" or _LONG_FACTORS in weights:
        short = periods * rope.factor * weights.floats(_SHORT_FACTORS, size)
        long = periods * rope.factor * weights.floats(_LONG_FACTORS, size)
        is_used = parameters.context_length > rope.original_context
        return Rotation(
            short.astype(np.float32),
            long.astype(np.float32) if is_used else None,
            rope.original_context,
            rope.attention_factor,
        )
    magnitude = rope.attention_factor
    if _FREQUENCY_FACTORS in weights:
        periods = periods * weights.floats(_FREQUENCY_FACTORS, size)
    if rope.scaling == "linear":
        periods = periods * rope.factor
    elif rope.scaling == "yarn":
        mix = _yarn_mix(rope)
        periods = 1 / ((1 - mix) / (periods * rope.factor) + mix / periods)
        if rope.extrapolation:
            magnitude *= 1 + 0.1 * math.log(rope.factor)
    return Rotation(periods.astype(np.float32), None, rope.original_context, magnitude)


def rotation_of_windows(parameters: Hyperparameters) -> Rotation | None:
    """Returns the RoPE parameters of layers with a sliding window; None = as in the other
    layers."""
    if parameters.window_rope_base is None:
        return None
    periods = _unscaled(parameters.window_rope_base, parameters.rope.num_dimensions)
    return Rotation(periods.astype(np.float32), None, parameters.context_length, 1.0)


def _unscaled(base: float, num_dimensions: int) -> NDArray[np.float64]:
    return np.asarray(base ** (np.arange(0, num_dimensions, 2, dtype=np.float64) / num_dimensions))


def _yarn_mix(rope: RopeSettings) -> NDArray[np.float64]:
    """Returns the weight of the unscaled frequency in each pair of dimensions, 0 to 1."""

    def dimension(num_rotations: float) -> float:
        """Returns the dimension whose frequency makes this number of rotations in the original
        context."""
        period = rope.original_context / (num_rotations * 2 * math.pi)
        return rope.num_dimensions * math.log(period) / (2 * math.log(rope.base))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.rounds_yarn:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(0.0, low), min(rope.num_dimensions - 1.0, high)
    pairs = np.arange(rope.num_dimensions // 2, dtype=np.float64)
    ramp = np.clip((pairs - low) / max(0.001, high - low), 0, 1)
    return np.asarray((1 - ramp) * rope.extrapolation)


def cos_sin(rotation: Rotation, position_ids: Node) -> CosSin:
    """Returns cosines and sines of `position_ids` [batch, tokens] with each pair's value twice.

    If there are long periods, they are used when the highest position is beyond the original
    context, as in optimum-intel's exports.
    """
    frequencies = constant((1 / rotation.periods.astype(np.float64)).astype(np.float32))
    if rotation.long_periods is not None:
        frequencies = _by_length(rotation, rotation.long_periods, position_ids)
    column = opset13.unsqueeze(frequencies, constant(np.array([0, 2])))
    row = opset13.convert(opset13.unsqueeze(position_ids, constant(np.array(1))), "f32")
    angles = opset13.matmul(column, row, False, False)
    angles = opset13.transpose(angles, constant(np.array([0, 2, 1])))
    angles = opset13.concat([angles, angles], -1)
    return CosSin(_scaled(opset13.cos(angles), rotation), _scaled(opset13.sin(angles), rotation))


def _by_length(rotation: Rotation, long_periods: Periods, position_ids: Node) -> Node:
    last = opset13.reduce_max(position_ids, constant(np.array([0, 1])), False)
    length = opset13.add(last, constant(np.array(1)))
    is_long = opset13.greater(length, constant(np.array(rotation.original_context)))
    periods = opset13.select(is_long, constant(long_periods), constant(rotation.periods))
    return opset13.power(periods, constant(np.array([-1], np.float32)))


def _scaled(values: Node, rotation: Rotation) -> Node:
    if rotation.magnitude != 1:
        values = opset13.multiply(values, constant(np.full((1, 1, 1), rotation.magnitude, "f")))
    return opset13.unsqueeze(values, constant(np.array(1)))


def rotate(heads: Node, num_dimensions: int, head_size: int, angles: CosSin) -> Node:
    """Returns `heads` [batch, heads, tokens, head_size] with the first dimensions rotated."""
    if num_dimensions == head_size:
        return _rotate(heads, num_dimensions, angles)
    sizes = constant(np.array([num_dimensions, head_size - num_dimensions]))
    parts = opset13.variadic_split(heads, constant(np.array(-1)), sizes)
    return opset13.concat([_rotate(parts.output(0), num_dimensions, angles), parts.output(1)], -1)


def _rotate(heads: Any, num_dimensions: int, angles: CosSin) -> Node:
    half = num_dimensions // 2
    step, axis = constant(np.array([1])), constant(np.array([3]))
    start, middle, end = (constant(np.array([n])) for n in (0, half, num_dimensions))
    first = opset13.slice(heads, start, middle, step, axis)
    second = opset13.slice(heads, middle, end, step, axis)
    negated = opset13.multiply(second, constant(np.array(-1, np.float32)))
    turned = opset13.concat([negated, first], -1)
    return opset13.add(opset13.multiply(heads, angles.cos), opset13.multiply(turned, angles.sin))


class Masks(NamedTuple):
    """Attention masks, nodes [batch, 1, tokens, past tokens + tokens], to be added to scores. The
    windowed mask has the pattern of gpt-oss's exports, which OpenVINO's paged attention recognizes;
    it treats any other mask as full attention.

    Attributes:
        windowed: None if no layer has a window.
    """

    causal: Node
    windowed: Node | None


def build_masks(input_ids: Node, attention_mask: Node, window: int) -> Masks:
    """Returns the attention masks.

    Args:
        input_ids: [batch, tokens].
        attention_mask: [batch, past tokens + tokens], 0 where a token is masked.
        window: the size of the sliding window in tokens; 0 = no window.
    """
    total = _length(attention_mask)
    past = opset13.subtract(total, _length(input_ids))
    one, zero = constant(np.array(1)), constant(np.array(0))
    queries = opset13.unsqueeze(
        opset13.range(past, total, one, "i64"), constant(np.array([0, 1, 3]))
    )
    keys = opset13.unsqueeze(opset13.range(zero, total, one, "i64"), constant(np.array([0, 1, 2])))
    is_before = opset13.less_equal(keys, queries)
    is_given = opset13.unsqueeze(
        opset13.convert(attention_mask, "boolean"), constant(np.array([1, 2]))
    )
    causal = _as_scores(opset13.bitwise_and(is_before, is_given))
    if not window:
        return Masks(causal, None)
    anything = constant(np.array(True))
    oldest = opset13.add(queries, constant(np.array(-window)))
    is_near = opset13.bitwise_and(anything, opset13.greater(keys, oldest))
    is_seen = opset13.bitwise_and(is_near, is_before)
    is_seen = opset13.bitwise_and(opset13.bitwise_and(anything, is_seen), is_given)
    shape = opset13.concat(
        [
            _dimension(input_ids, 0),
            constant(np.array([1])),
            _dimension(input_ids, 1),
            _dimension(attention_mask, 1),
        ],
        0,
    )
    scores = _as_scores(opset13.broadcast(is_seen, shape))
    bounds = [np.array([0]), None, np.array([1]), np.array([3])]
    whole = [_dimension(attention_mask, 1) if each is None else constant(each) for each in bounds]
    return Masks(causal, opset13.slice(scores, *whole))


def _as_scores(is_seen: Node) -> Node:
    hidden = constant(np.array(np.finfo(np.float16).min, np.float32))
    return opset13.select(is_seen, constant(np.array(0, np.float32)), hidden)


def _dimension(node: Node, axis: int) -> Node:
    shape = opset13.shape_of(node)
    return opset13.gather(shape, constant(np.array([axis])), constant(np.array(0)))


def _length(node: Node) -> Node:
    return opset13.squeeze(_dimension(node, 1), constant(np.array(0)))


_INPUTS: Final = {"input_ids": 2, "attention_mask": 2, "position_ids": 2, "beam_idx": 1}
"""The names of the inputs, in the order of exports, and their ranks."""

_NEEDLESS: Final = "attn_rot_embd.weight"
"""Frequency tensors that old files repeat for each layer; they are ignored."""

_BY_HEADS: Final = [0, 2, 1, 3]


def build_decoder(file: GgufFile, parameters: Hyperparameters) -> ov.Model:
    """Returns the OpenVINO graph of the decoder. Before it reads any matrix, raises
    ConfigurationError if tensors are missing, have wrong shapes, or are unknown to this
    architecture."""
    weights = Weights(file, is_trial=True)
    _DecoderBuilder(weights, parameters).build()
    unused = [name for name in weights.unused() if not name.endswith(_NEEDLESS)]
    if unused:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise ConfigurationError(
            f"architecture {parameters.name} is not supported with the tensor {unused[0]}{more}"
        )
    logits, sinks, inputs = _DecoderBuilder(Weights(file), parameters).build()
    return ov.Model([logits], sinks, inputs, "decoder")


class _Projected(NamedTuple):
    """Queries, keys and values, [batch, tokens, width]."""

    queries: Node
    keys: Node
    values: Node


class _DecoderBuilder:
    """Builds the graph of a decoder layer by layer."""

    def __init__(self, weights: Weights, parameters: Hyperparameters) -> None:
        self._weights = weights
        self._p = parameters
        self._architecture = parameters.architecture
        self._sinks: list[Node] = []
        self._inputs = {name: _parameter(name, rank) for name, rank in _INPUTS.items()}
        self._beams = self._inputs["beam_idx"]
        self._batch = _dimension(self._inputs["input_ids"], 0)

    def build(self) -> tuple[Node, list[Node], list[Node]]:
        """Returns the logits, the nodes that store states (KV cache), and the inputs."""
        p, inputs = self._p, self._inputs
        embeddings = self._embeddings()
        masks = build_masks(inputs["input_ids"], inputs["attention_mask"], p.window)
        positions = inputs["position_ids"]
        angles = cos_sin(rotation_of(p, self._weights), positions)
        of_windows = rotation_of_windows(p) if masks.windowed is not None else None
        window_angles = angles if of_windows is None else cos_sin(of_windows, positions)
        hidden = opset13.gather(embeddings, inputs["input_ids"], constant(np.array(0)))
        if self._architecture.scales_embeddings:
            hidden = opset13.multiply(hidden, _number(p.hidden_size**0.5))
        for layer, has_window in enumerate(p.windowed_layers):
            mask = masks.windowed if has_window else masks.causal
            hidden = self._layer(layer, hidden, mask, window_angles if has_window else angles)
        hidden = self._norm(hidden, self._architecture.last_norm, p.hidden_size)
        logits = self._logits(hidden, embeddings)
        result = opset13.result(logits)
        result.output(0).set_names({"logits"})
        result.set_friendly_name("logits")
        return result, self._sinks, list(inputs.values())

    # Parts

    def _embeddings(self) -> Node:
        shape = self._weights.shape("token_embd.weight")
        self._num_tokens = shape[0]
        return self._weights.matrix("token_embd.weight", shape[0], self._p.hidden_size)

    def _logits(self, hidden: Node, embeddings: Node) -> Node:
        matrix = embeddings  # tied to the output
        if "output.weight" in self._weights:
            matrix = self._weights.matrix("output.weight", self._num_tokens, self._p.hidden_size)
        logits = self._biased(_times(hidden, matrix), "output", self._num_tokens)
        if self._p.final_soft_cap:
            cap = _number(self._p.final_soft_cap)
            logits = opset13.multiply(opset13.tanh(opset13.divide(logits, cap)), cap)
        return logits

    def _layer(self, layer: int, hidden: Node, mask: Node, angles: CosSin) -> Node:
        size, prefix = self._p.hidden_size, f"blk.{layer}"
        normed = self._norm(hidden, f"{prefix}.attn_norm", size)
        if self._p.convolved_layers[layer]:
            output = self._convolution(layer, prefix, normed)
        else:
            output = self._attention(layer, prefix, normed, mask, angles)
        if self._architecture.norms_outputs:
            output = self._norm(output, f"{prefix}.post_attention_norm", size)
        hidden = opset13.add(hidden, output)
        normed = self._norm(hidden, f"{prefix}.{self._architecture.mlp_norm}", size)
        output = (
            self._mlp(prefix, normed)
            if self._p.experts is None
            else (self._mixture(prefix, normed, self._p.experts))
        )
        if self._architecture.norms_outputs:
            output = self._norm(output, f"{prefix}.post_ffw_norm", size)
        return opset13.add(hidden, output)

    def _convolution(self, layer: int, prefix: str, hidden: Node) -> Node:
        size, num_columns = self._p.hidden_size, self._p.conv_columns
        joined = self._linear(hidden, f"{prefix}.shortconv.in_proj", 3 * size, size)
        factors = self._weights.floats(f"{prefix}.shortconv.conv.weight", size, num_columns)
        number = sum(self._p.convolved_layers[:layer])
        mixed, sink = short_convolution(joined, factors, self._beams, number)
        self._sinks.append(sink)
        mixed = opset13.transpose(mixed, constant(np.array([0, 2, 1])))
        return self._linear(mixed, f"{prefix}.shortconv.out_proj", size, size)

    def _attention(self, layer: int, prefix: str, hidden: Node, mask: Node, angles: CosSin) -> Node:
        p = self._p
        projected = self._projections(prefix, hidden)
        queries = self._split_heads(projected.queries, p.num_heads)
        keys = self._split_heads(projected.keys, p.num_kv_heads)
        values = self._split_heads(projected.values, p.num_kv_heads)
        if self._architecture.norms_heads:
            queries = self._norm(queries, f"{prefix}.attn_q_norm", p.head_size)
            keys = self._norm(keys, f"{prefix}.attn_k_norm", p.head_size)
        num_rotated = p.rope.num_dimensions
        queries = rotate(_transposed(queries), num_rotated, p.head_size, angles)
        keys = rotate(_transposed(keys), num_rotated, p.head_size, angles)
        keys = self._with_past(f"past_key_values.{layer}.key", keys)
        values = self._with_past(f"past_key_values.{layer}.value", _transposed(values))
        inputs = [queries, keys, values, mask, _number(p.score_scale)]
        if self._architecture.has_sinks:
            sinks = self._weights.floats(f"{prefix}.attn_sinks.weight", p.num_heads)
            inputs.append(constant(sinks.reshape(1, -1, 1, 1)))
        # openvino.opset13's function has no argument for sinks.
        attended = NodeFactory("opset13").create(
            "ScaledDotProductAttention", inputs, {"causal": False}
        )
        width = p.num_heads * p.head_size
        merged = opset13.reshape(_transposed(attended), constant(np.array([0, 0, width])), True)
        return self._linear(merged, f"{prefix}.attn_output", p.hidden_size, width)

    def _projections(self, prefix: str, hidden: Node) -> _Projected:
        p = self._p
        width, kv_width = p.num_heads * p.head_size, p.num_kv_heads * p.head_size
        if self._architecture.fuses_projections:
            sizes = [width, kv_width, kv_width]
            fused = self._linear(hidden, f"{prefix}.attn_qkv", sum(sizes), p.hidden_size)
            parts = opset13.variadic_split(fused, constant(np.array(-1)), constant(np.array(sizes)))
            return _Projected(*parts.outputs())
        return _Projected(
            self._linear(
                hidden, f"{prefix}.attn_q", width, p.hidden_size, self._row_order(p.num_heads)
            ),
            self._linear(
                hidden, f"{prefix}.attn_k", kv_width, p.hidden_size, self._row_order(p.num_kv_heads)
            ),
            self._linear(hidden, f"{prefix}.attn_v", kv_width, p.hidden_size),
        )

    def _row_order(self, num_heads: int) -> NDArray[np.int64] | None:
        """Returns the order of the file's rows in which the two dimensions of a rotated pair are
        half a head apart; None = the file already has this order."""
        if not self._architecture.interleaves_rotations:
            return None
        rows = np.arange(num_heads * self._p.head_size)
        return rows.reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(-1)

    def _mlp(self, prefix: str, hidden: Node) -> Node:
        size = self._p.hidden_size
        inner = self._weights.shape(f"{prefix}.ffn_down.weight")[-1]
        if self._architecture.fuses_projections:
            both = self._linear(hidden, f"{prefix}.ffn_up", 2 * inner, size)
            parts = opset13.split(both, constant(np.array(-1)), 2)
            gate, up = parts.outputs()
        else:
            gate = self._linear(hidden, f"{prefix}.ffn_gate", inner, size)
            up = self._linear(hidden, f"{prefix}.ffn_up", inner, size)
        if self._architecture.activation == "Gelu":
            gate = opset13.gelu(gate, "tanh")
        else:
            gate = opset13.swish(gate)
        product = opset13.multiply(gate, up)
        return self._linear(product, f"{prefix}.ffn_down", size, inner)

    def _mixture(self, prefix: str, hidden: Node, settings: ExpertSettings) -> Node:
        size, num_experts = self._p.hidden_size, settings.num_experts
        inner = self._weights.shape(f"{prefix}.ffn_down_exps.weight", 3)[-1]
        widening, matrix = (num_experts, inner, size), self._weights.matrix
        weights = Experts(
            matrix(f"{prefix}.ffn_gate_inp.weight", num_experts, size),
            matrix(f"{prefix}.ffn_gate_exps.weight", *widening),
            matrix(f"{prefix}.ffn_up_exps.weight", *widening),
            matrix(f"{prefix}.ffn_down_exps.weight", num_experts, size, inner),
            self._expert_biases(prefix, num_experts, inner),
        )
        is_normalized = self._architecture.normalizes_shares
        return mixture(hidden, weights, settings.num_chosen, is_normalized=is_normalized)

    def _expert_biases(
        self, prefix: str, num_experts: int, inner: int
    ) -> tuple[NDArray[np.float32], ...]:
        if not self._architecture.has_sinks:
            return ()
        sizes = {"gate_exps": inner, "up_exps": inner, "down_exps": self._p.hidden_size}
        biases = [self._weights.floats(f"{prefix}.ffn_gate_inp.bias", num_experts)]
        for name, size in sizes.items():
            values = self._weights.floats(f"{prefix}.ffn_{name}.bias", num_experts, size)
            biases.append(values[:, None])
        return tuple(biases)

    # Operations

    def _linear(
        self,
        hidden: Node,
        name: str,
        num_rows: int,
        num_columns: int,
        order: NDArray[np.int64] | None = None,
    ) -> Node:
        matrix = self._weights.matrix(f"{name}.weight", num_rows, num_columns, order=order)
        return self._biased(_times(hidden, matrix), name, num_rows, order)

    def _biased(
        self, output: Node, name: str, size: int, order: NDArray[np.int64] | None = None
    ) -> Node:
        if f"{name}.bias" not in self._weights:
            return output
        bias = self._weights.floats(f"{name}.bias", size)
        bias = bias if order is None else bias[order]
        return opset13.add(output, constant(bias.reshape(1, 1, size)))

    def _norm(self, hidden: Node, name: str, size: int) -> Node:
        """Adds an RMS norm over the last dimension."""
        gains = self._weights.floats(f"{name}.weight", size)
        square = opset13.power(hidden, _number(2))
        mean = opset13.reduce_mean(square, constant(np.array([-1])), True)
        root = opset13.sqrt(opset13.add(mean, _number(self._p.norm_epsilon)))
        normed = opset13.multiply(hidden, opset13.divide(_number(1), root))
        return opset13.multiply(normed, constant(gains))

    def _split_heads(self, projected: Node, num_heads: int) -> Node:
        shape = np.array([0, 0, num_heads, self._p.head_size])
        return opset13.reshape(projected, constant(shape), True)

    def _with_past(self, name: str, current: Node) -> Node:
        """Appends keys or values to those in the state, and repeats each KV head for its query
        heads."""
        p = self._p
        sizes = [constant(np.array([n])) for n in (p.num_kv_heads, 0, p.head_size)]
        empty = opset13.broadcast(_number(0), opset13.concat([self._batch, *sizes], 0))
        info = util.VariableInfo()
        info.data_shape = ov.PartialShape([-1, p.num_kv_heads, -1, p.head_size])
        info.data_type = ov.Type.f32
        info.variable_id = name
        variable = util.Variable(info)
        past = opset13.read_value(empty, variable)
        past = opset13.gather(past, self._beams, constant(np.array(0)))
        states = opset13.concat([past, current], 2)
        self._sinks.append(opset13.assign(states, variable))
        num_shared = p.num_heads // p.num_kv_heads
        if num_shared == 1:
            return states
        length = _dimension(states, 2)
        sizes = [constant(np.array([n])) for n in (p.num_kv_heads, num_shared, p.head_size)]
        shape = opset13.concat([self._batch, *sizes[:2], length, sizes[2]], 0)
        repeated = opset13.broadcast(opset13.unsqueeze(states, constant(np.array(2))), shape)
        target = constant(np.array([0, p.num_heads, -1, p.head_size]))
        return opset13.reshape(repeated, target, True)


def _parameter(name: str, rank: int) -> Node:
    kind = ov.Type.i32 if name == "beam_idx" else ov.Type.i64
    node = opset13.parameter(ov.PartialShape([-1] * rank), kind)
    node.set_friendly_name(name)  # SDPAToPagedAttention finds the state by this name
    node.output(0).set_names({name})
    return node


def _times(hidden: Node, matrix: Node) -> Node:
    return opset13.matmul(hidden, matrix, False, True)


def _transposed(heads: Node) -> Node:
    """Returns a node with heads and tokens swapped."""
    return opset13.transpose(heads, constant(np.array(_BY_HEADS)))


def _number(value: float) -> Node:
    return constant(np.array(value, np.float32))
