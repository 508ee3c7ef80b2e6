"""Builds the graph of a decoder: tokens in, logits out, with state, as optimum-intel exports it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13
from openvino.op import util

from fastovms.errors import ConfigurationError
from fastovms.gguf.causal_masks import build_masks
from fastovms.gguf.file_reader import GgufFile
from fastovms.gguf.hyperparameters import Hyperparameters
from fastovms.gguf.rotary import CosSin, cos_sin, rotate, rotation_of, rotation_of_windows
from fastovms.gguf.weights import Weights, constant

Node = Any

_INPUTS: Final = {"input_ids": 2, "attention_mask": 2, "position_ids": 2, "beam_idx": 1}
"""The names of the inputs, in the order of exports, and their ranks."""

_NEEDLESS: Final = "attn_rot_embd.weight"
"""Tensors of frequencies that old files repeat for each layer."""

_BY_HEADS: Final = [0, 2, 1, 3]


def build_decoder(file: GgufFile, parameters: Hyperparameters) -> ov.Model:
    """Builds the graph.

    Raises:
        ConfigurationError: tensors are missing, of other shapes than the sizes ask for, or of no
            use to this architecture.
    """
    weights = Weights(file)
    model = _DecoderBuilder(weights, parameters).build()
    unused = [name for name in weights.unused() if not name.endswith(_NEEDLESS)]
    if unused:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise ConfigurationError(
            f"architecture {parameters.name} is not taken with the tensor {unused[0]}{more}"
        )
    return model


class _Projected(NamedTuple):
    """Queries, keys and values, [batch, tokens, width]."""

    queries: Node
    keys: Node
    values: Node


class _DecoderBuilder:
    def __init__(self, weights: Weights, parameters: Hyperparameters) -> None:
        self._weights = weights
        self._p = parameters
        self._architecture = parameters.architecture
        self._sinks: list[Node] = []
        self._inputs = {name: _parameter(name, rank) for name, rank in _INPUTS.items()}
        self._beams = self._inputs["beam_idx"]
        self._batch = _dimension(self._inputs["input_ids"], 0)

    def build(self) -> ov.Model:
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
        hidden = self._norm(hidden, "output_norm", p.hidden_size)
        logits = self._logits(hidden, embeddings)
        result = opset13.result(logits)
        result.output(0).set_names({"logits"})
        result.set_friendly_name("logits")
        return ov.Model([result], self._sinks, list(inputs.values()), "decoder")

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
        output = self._attention(layer, prefix, normed, mask, angles)
        if self._architecture.norms_outputs:
            output = self._norm(output, f"{prefix}.post_attention_norm", size)
        hidden = opset13.add(hidden, output)
        output = self._mlp(prefix, self._norm(hidden, f"{prefix}.ffn_norm", size))
        if self._architecture.norms_outputs:
            output = self._norm(output, f"{prefix}.post_ffw_norm", size)
        return opset13.add(hidden, output)

    def _attention(self, layer: int, prefix: str, hidden: Node, mask: Node, angles: CosSin) -> Node:
        p = self._p
        projected = self._projections(prefix, hidden)
        queries = self._heads(projected.queries, p.num_heads)
        keys = self._heads(projected.keys, p.num_kv_heads)
        values = self._heads(projected.values, p.num_kv_heads)
        if self._architecture.norms_heads:
            queries = self._norm(queries, f"{prefix}.attn_q_norm", p.head_size)
            keys = self._norm(keys, f"{prefix}.attn_k_norm", p.head_size)
        num_rotated = p.rope.num_dimensions
        queries = rotate(_transposed(queries), num_rotated, p.head_size, angles)
        keys = rotate(_transposed(keys), num_rotated, p.head_size, angles)
        keys = self._with_past(f"past_key_values.{layer}.key", keys)
        values = self._with_past(f"past_key_values.{layer}.value", _transposed(values))
        attended = opset13.scaled_dot_product_attention(
            queries, keys, values, mask, _number(p.score_scale)
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
        """Returns the order in which rows of the file are taken, so that pairs of rotated
        dimensions lie half a head apart; None = the file has them like that."""
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

    # Operations

    def _linear(
        self,
        hidden: Node,
        name: str,
        num_rows: int,
        num_columns: int,
        order: NDArray[np.int64] | None = None,
    ) -> Node:
        matrix = self._weights.matrix(f"{name}.weight", num_rows, num_columns, order)
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
        """Divides by the root of the mean square over the last dimension."""
        gains = self._weights.floats(f"{name}.weight", size)
        square = opset13.power(hidden, _number(2))
        mean = opset13.reduce_mean(square, constant(np.array([-1])), True)
        root = opset13.sqrt(opset13.add(mean, _number(self._p.norm_epsilon)))
        normed = opset13.multiply(hidden, opset13.divide(_number(1), root))
        return opset13.multiply(normed, constant(gains))

    def _heads(self, projected: Node, num_heads: int) -> Node:
        shape = np.array([0, 0, num_heads, self._p.head_size])
        return opset13.reshape(projected, constant(shape), True)

    def _with_past(self, name: str, current: Node) -> Node:
        """Appends keys or values to those that the state has, and repeats them for each head."""
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
    node.set_friendly_name(name)  # the name by which the transformation to paged attention finds it
    node.output(0).set_names({name})
    return node


def _times(hidden: Node, matrix: Node) -> Node:
    return opset13.matmul(hidden, matrix, False, True)


def _transposed(heads: Node) -> Node:
    """Returns a node with heads and tokens swapped."""
    return opset13.transpose(heads, constant(np.array(_BY_HEADS)))


def _number(value: float) -> Node:
    return constant(np.array(value, np.float32))


def _dimension(node: Node, axis: int) -> Node:
    return opset13.gather(opset13.shape_of(node), constant(np.array([axis])), constant(np.array(0)))
