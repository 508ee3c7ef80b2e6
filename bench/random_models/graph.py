"""The graph of a Llama-shaped OpenVINO model with random weights, made without torch.

It follows what optimum-intel 2.2 exports (stateful key/value cache, weights as NNCF compresses
them), so that the paged attention transformation and the plugins' fusions treat it like a real
model of that shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from bench.random_models.nodes import dimension, index, parameter, real
from bench.random_models.shapes import Shape
from bench.random_models.weights import Node, QuantizedMatrix, WeightFormat
from fastovms.gguf.layers import Experts, mixture
from fastovms.gguf.recurrent import short_convolution

BIAS_CHANNEL = 0
"""A channel that every embedding sets and no layer writes to. Through it the head, which has no
bias, gives a token the same low logit at every position."""

LOGIT_STD = 4.0
"""About that of trained models: at temperature 1 a few dozen tokens share the probability."""

SCORE_STD = 2.0
"""Of the attention scores: each position attends to a few others, not to the mean of all, so that
the text depends on its context and greedy decoding does not fall into a cycle."""

ROUTER_STD = 2.0
"""Of the experts' scores: the chosen ones are clearly better than the others."""

TIED_EMBEDDING_STD = 0.25
"""Less than what the layers add: a tied head finds that likely which was put in, and what made
the token before likely."""


class LlamaGraph:
    """Builds `input_ids, attention_mask, position_ids, beam_idx -> logits` with random weights.

    The inputs are i64 [B, Q], [B, K], [B, Q] and i32 [B], the output is f32 [B, Q, vocab_size]:
    Q new tokens of the K in the context. Ids from `num_tokens` on, and those that are `unsaid`, get
    logits far below all others.
    """

    def __init__(
        self, shape: Shape, num_tokens: int, seed: int, unsaid: Sequence[int] = ()
    ) -> None:
        self._shape = shape
        self._ruled_out = np.array([*unsaid, *range(num_tokens, shape.vocab_size)], np.int64)
        self._rng = np.random.default_rng(seed)
        self._format = WeightFormat(shape.weight_format)
        self._assigns: list[Node] = []
        self._input_ids = parameter("input_ids", [-1, -1], np.int64)
        self._attention_mask = parameter("attention_mask", [-1, -1], np.int64)
        self._position_ids = parameter("position_ids", [-1, -1], np.int64)
        self._beam_idx = parameter("beam_idx", [-1], np.int32)
        self._sized = self._input_ids
        """What the sizes of the batch and of the text are taken from."""

    def build(self) -> ov.Model:
        self._cos, self._sin = self._rotations()
        self._mask: Node = None
        hidden = self._embedding()
        for layer in range(self._shape.num_hidden_layers):
            name = f"model.layers.{layer}"
            normed = self._norm(hidden, f"{name}.input_layernorm")
            if layer in self._shape.convolutions:
                mixed = self._convolution(normed, layer, f"{name}.conv")
            else:
                mixed = self._attention(normed, layer, f"{name}.self_attn")
            hidden = ops.add(hidden, mixed)
            normed = self._norm(hidden, f"{name}.post_attention_layernorm")
            mlp = self._mixture if self._shape.num_experts else self._mlp
            hidden = ops.add(hidden, mlp(normed, f"{name}.mlp"))
        logits = self._head(self._norm(hidden, "model.norm"))
        logits.output(0).set_names({"logits"})
        inputs = [self._input_ids, self._attention_mask, self._position_ids, self._beam_idx]
        return ov.Model([ops.result(logits, name="logits")], self._assigns, inputs, "llama")

    # Embedding and head

    def _embedding(self) -> Node:
        size, vocab_size = self._shape.hidden_size, self._shape.vocab_size
        is_tied = self._shape.tie_word_embeddings
        std = self._head_std if is_tied else 1.0
        weights = QuantizedMatrix.random(self._rng, vocab_size, size, std)
        weights.values[:, 0, BIAS_CHANNEL] = 255
        if is_tied:
            self._rule_out(weights)
        self._embedded = self._format.node(weights, "model.embed_tokens.weight")
        ids = ops.convert(self._input_ids, np.int32)
        hidden = ops.gather(self._embedded, ids, index(0))
        return ops.multiply(hidden, real(TIED_EMBEDDING_STD / std)) if is_tied else hidden

    @property
    def _head_std(self) -> float:
        return float(LOGIT_STD / self._shape.hidden_size**0.5)

    def _head(self, hidden: Node) -> Node:
        if self._shape.tie_word_embeddings:
            return ops.matmul(hidden, self._embedded, False, True)
        size = self._shape.hidden_size
        weights = QuantizedMatrix.random(self._rng, self._shape.vocab_size, size, self._head_std)
        self._rule_out(weights)
        return ops.matmul(hidden, self._format.node(weights, "lm_head.weight"), False, True)

    def _rule_out(self, head: QuantizedMatrix) -> None:
        head.clear_rows(self._ruled_out)
        head.values[self._ruled_out, 0, BIAS_CHANNEL] = 0
        head.scale[self._ruled_out] = 10 * LOGIT_STD / 128

    # Layers

    def _matrix(self, rows: int, columns: int, std: float) -> QuantizedMatrix:
        return QuantizedMatrix.random(self._rng, rows, columns, std, self._format.quantization)

    def _linear(self, inputs: Node, rows: int, columns: int, std: float, name: str) -> Node:
        """Projects [B, Q, columns] to [B, Q, rows]."""
        weights = self._format.node(self._matrix(rows, columns, std), f"{name}.weight")
        return ops.matmul(inputs, weights, False, True)

    def _residual(self, inputs: Node, columns: int, gain: float, name: str) -> Node:
        """Projects [B, Q, columns], or [B, columns, Q], to the residual stream; all layers together
        add about what an embedding has."""
        size, num_layers = self._shape.hidden_size, self._shape.num_hidden_layers
        weights = self._matrix(size, columns, gain / (columns * num_layers) ** 0.5)
        weights.clear_rows(slice(BIAS_CHANNEL, BIAS_CHANNEL + 1))
        matrix = self._format.node(weights, f"{name}.weight")
        is_transposed = inputs.get_output_partial_shape(0)[1].is_static
        return ops.matmul(inputs, matrix, is_transposed, True)

    def _gamma(self, size: int) -> NDArray[np.float32]:
        return self._rng.uniform(0.8, 1.2, size).astype(np.float32)

    def _norm(self, hidden: Node, name: str) -> Node:
        return self._normed(hidden, self._gamma(self._shape.hidden_size), name)

    def _normed(self, hidden: Node, gamma: NDArray[np.float32], name: str) -> Node:
        variance = ops.reduce_mean(ops.power(hidden, real(2.0)), index([-1]), True)
        deviation = ops.sqrt(ops.add(variance, real(self._shape.rms_norm_eps)))
        normed = ops.multiply(hidden, ops.divide(real(1.0), deviation))
        rank = len(hidden.get_output_partial_shape(0))
        weight = ops.constant(gamma.reshape([1] * (rank - 1) + [-1]), name=f"{name}.weight")
        return ops.multiply(weight, normed)

    def _mlp(self, hidden: Node, name: str) -> Node:
        inner, size = self._shape.intermediate_size, self._shape.hidden_size
        gate = self._linear(hidden, inner, size, size**-0.5, f"{name}.gate_proj")
        up = self._linear(hidden, inner, size, size**-0.5, f"{name}.up_proj")
        return self._residual(ops.multiply(ops.swish(gate), up), inner, 1.7, f"{name}.down_proj")

    def _mixture(self, hidden: Node, name: str) -> Node:
        shape = self._shape
        inner, size, num_experts = shape.intermediate_size, shape.hidden_size, shape.num_experts
        gate, up = (self._matrix(num_experts * inner, size, size**-0.5) for _ in range(2))
        std = 1.7 / (inner * shape.num_hidden_layers) ** 0.5
        down = self._matrix(num_experts * size, inner, std)
        down.clear_rows(slice(BIAS_CHANNEL, None, size))
        experts = [
            self._format.node(matrix, f"{name}.experts.{kind}_proj.weight", num_experts)
            for kind, matrix in (("gate", gate), ("up", up), ("down", down))
        ]
        scores = self._matrix(num_experts, size, ROUTER_STD * size**-0.5)
        router = self._format.node(scores, f"{name}.gate.weight")
        weights = Experts(router, *experts)
        mixed = mixture(hidden, weights, shape.num_experts_per_tok, is_normalized=True)
        if not shape.shared_expert:
            return mixed
        gate_of_shared = self._linear(hidden, 1, size, size**-0.5, f"{name}.shared_expert_gate")
        shared = self._mlp(hidden, f"{name}.shared_expert")
        return ops.add(mixed, ops.multiply(ops.sigmoid(gate_of_shared), shared))

    def _convolution(self, hidden: Node, layer: int, name: str) -> Node:
        size, num_tokens = self._shape.hidden_size, self._shape.conv_tokens
        joined = self._linear(hidden, 3 * size, size, size**-0.5, f"{name}.in_proj")
        weights = self._rng.normal(0, num_tokens**-0.5, (size, num_tokens)).astype(np.float32)
        number = self._shape.convolutions.index(layer)
        mixed, assign = short_convolution(joined, weights, self._beam_idx, number)
        self._assigns.append(assign)
        return self._residual(mixed, size, 1.0, f"{name}.out_proj")

    def _attention(self, hidden: Node, layer: int, name: str) -> Node:
        shape = self._shape
        num_heads, num_kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        std = (SCORE_STD / shape.hidden_size) ** 0.5
        query = self._heads(hidden, num_heads, std, f"{name}.q_proj")
        key = self._heads(hidden, num_kv_heads, std, f"{name}.k_proj")
        value = self._heads(hidden, num_kv_heads, shape.hidden_size**-0.5, f"{name}.v_proj")
        if shape.qk_norm:
            gamma = self._gamma(shape.head_dim) * np.float32(SCORE_STD**0.5)
            query = self._normed(query, gamma, f"{name}.q_norm")
            key = self._normed(key, self._gamma(shape.head_dim), f"{name}.k_norm")
        query, key, value = map(_transposed_heads, (query, key, value))
        key = self._cached(self._rotated(key), layer, "key")
        value = self._cached(value, layer, "value")
        attended = ops.scaled_dot_product_attention(
            self._rotated(query),
            self._repeated(key),
            self._repeated(value),
            self._mask,
            real(shape.head_dim**-0.5),
        )
        width = num_heads * shape.head_dim
        joined = ops.reshape(_transposed_heads(attended), index([0, 0, width]), True)
        return self._residual(joined, width, 1.0, f"{name}.o_proj")

    def _heads(self, hidden: Node, num_heads: int, std: float, name: str) -> Node:
        """Projects to [B, Q, num_heads, head_dim]."""
        size, head_dim = self._shape.hidden_size, self._shape.head_dim
        flat = self._linear(hidden, num_heads * head_dim, size, std, name)
        if self._shape.attention_bias:
            bias = self._rng.normal(0, 0.1, (1, 1, num_heads * head_dim)).astype(np.float32)
            flat = ops.add(flat, ops.constant(bias, name=f"{name}.bias"))
        return ops.reshape(flat, index([0, 0, num_heads, head_dim]), True)

    def _cached(self, new: Node, layer: int, kind: str) -> Node:
        """Appends to the variable of this layer and kind: [B, num_kv_heads, K, head_dim]."""
        num_kv_heads, head_dim = self._shape.num_key_value_heads, self._shape.head_dim
        batch_size = dimension(self._sized, [0])
        empty = ops.broadcast(
            real(0.0), ops.concat([batch_size, index([num_kv_heads, 0, head_dim])], 0)
        )
        variable = f"past_key_values.{layer}.{kind}present.{layer}.{kind}"
        stored = ops.read_value(empty, variable, np.float32, [-1, num_kv_heads, -1, head_dim])
        past = ops.gather(stored, self._beam_idx, index(0))
        if self._mask is None:
            self._mask = self._causal_mask(past)
        cached = ops.concat([past, new], -2)
        self._assigns.append(ops.assign(cached, variable))
        return cached

    def _repeated(self, heads: Node) -> Node:
        """Gives each query head its key or value head (grouped-query attention)."""
        shape = self._shape
        num_groups = shape.num_attention_heads // shape.num_key_value_heads
        if num_groups == 1:
            return heads
        grouped = ops.broadcast(
            ops.unsqueeze(heads, index(2)),
            index([1, 1, num_groups, 1, 1]),
            broadcast_spec="BIDIRECTIONAL",
        )
        return ops.reshape(grouped, index([0, shape.num_attention_heads, -1, shape.head_dim]), True)

    # Positions

    def _causal_mask(self, past: Node) -> Node:
        """What each new token may not see gets f16's lowest value: f32 [B, 1, Q, K]."""
        past_len, num_new = dimension(past, 2), dimension(self._sized, 1)
        total = ops.add(past_len, num_new)
        key_index = ops.unsqueeze(ops.range(index(0), total, index(1), "i64"), index([0, 1, 2]))
        new_index = ops.unsqueeze(ops.range(past_len, total, index(1), "i64"), index([0, 1, 3]))
        is_token = ops.unsqueeze(ops.convert(self._attention_mask, bool), index([1, 2]))
        is_past = ops.less_equal(key_index, new_index)
        if self._shape.sliding_window is None:
            visible = ops.logical_and(is_past, is_token)
            return ops.select(visible, real(0.0), real(-65504.0))
        return self._sliding_mask(key_index, new_index, is_past, is_token, total)

    def _sliding_mask(
        self, key_index: Node, new_index: Node, is_past: Node, is_token: Node, total: Node
    ) -> Node:
        """In the words of transformers' masking functions, in which alone the transformation to
        paged attention recognises the window."""
        true = ops.constant(np.array(True))
        assert self._shape.sliding_window is not None
        start = ops.add(new_index, index(-self._shape.sliding_window))
        visible = ops.bitwise_and(true, ops.greater(key_index, start))
        visible = ops.bitwise_and(true, ops.bitwise_and(visible, is_past))
        visible = ops.bitwise_and(visible, is_token)
        visible = ops.broadcast(visible, ops.shape_of(visible))
        mask = ops.select(visible, real(0.0), real(-65504.0))
        end = ops.unsqueeze(total, index(0))
        return ops.slice(mask, index([0]), end, index([1]), index([3]))

    def _rotations(self) -> tuple[Node, Node]:
        """Cosine and sine of the rotary position embedding: f32 [B, 1, Q, head_dim]."""
        exponents = np.arange(0, self._shape.head_dim, 2, dtype=np.float32) / self._shape.head_dim
        frequencies = (self._shape.rope_theta**-exponents).reshape(1, -1, 1)
        positions = ops.convert(ops.unsqueeze(self._position_ids, index(1)), np.float32)
        angles = ops.matmul(ops.constant(frequencies), positions, False, False)
        angles = ops.transpose(angles, index([0, 2, 1]))
        angles = ops.concat([angles, angles], -1)
        return ops.unsqueeze(ops.cos(angles), index(1)), ops.unsqueeze(ops.sin(angles), index(1))

    def _rotated(self, heads: Node) -> Node:
        half = self._shape.head_dim // 2
        start, middle, end = index([0]), index([half]), index([np.iinfo(np.int64).max])
        step, axis = index([1]), index([3])
        first = ops.slice(heads, start, middle, step, axis)
        second = ops.slice(heads, middle, end, step, axis)
        turned = ops.concat([ops.multiply(second, real(-1.0)), first], -1)
        return ops.add(ops.multiply(heads, self._cos), ops.multiply(turned, self._sin))


def _transposed_heads(heads: Node) -> Node:
    """[B, Q, num_heads, head_dim] to [B, num_heads, Q, head_dim], and back."""
    return ops.transpose(heads, index([0, 2, 1, 3]))
