"""The graphs of Whisper models, made of their weights without torch.

They follow what optimum-intel exports: an encoder, and a decoder that keeps its keys and values as
state, those of the audio too. Weights have the names of Hugging Face's state dicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops
from openvino.op import util

from bench.random_models.nodes import index, parameter, real
from bench.random_models.weights import Node

Weights = Mapping[str, NDArray[Any]]
_EPSILON = 1e-5
_BIASED = 10.0
_ATTENTIVENESS = 4.0


@dataclass(frozen=True)
class WhisperShape:
    """A Whisper model, named as in Hugging Face's configurations."""

    d_model: int
    encoder_layers: int
    encoder_attention_heads: int
    decoder_layers: int
    decoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_ffn_dim: int
    vocab_size: int
    num_mel_bins: int = 80
    max_source_positions: int = 1500
    max_target_positions: int = 448


def random_weights(shape: WhisperShape, seed: int, biases: NDArray[Any]) -> Weights:
    """Returns random weights.

    Args:
        biases: what is added to the logits, f32 [vocab_size]: how likely each token is.
    """
    rng = np.random.default_rng(seed)
    size, found = shape.d_model, dict[str, NDArray[Any]]()

    def matrix(name: str, *dimensions: int, std: float | None = None) -> None:
        std = 1.5 / np.prod(dimensions[1:]) ** 0.5 if std is None else std
        found[f"{name}.weight"] = rng.normal(0, std, dimensions).astype(np.float32)

    def linear(name: str, rows: int, columns: int, *, has_bias: bool = True) -> None:
        matrix(name, rows, columns)
        if has_bias:
            found[f"{name}.bias"] = rng.normal(0, 0.05, rows).astype(np.float32)

    def norm(name: str) -> None:
        found[f"{name}.weight"] = rng.uniform(0.8, 1.2, size).astype(np.float32)
        found[f"{name}.bias"] = rng.normal(0, 0.05, size).astype(np.float32)

    def attention(name: str) -> None:
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear(f"{name}.{part}", size, size, has_bias=part != "k_proj")
        norm(f"{name}_layer_norm")

    for side, layers, inner, kinds in (
        ("encoder", shape.encoder_layers, shape.encoder_ffn_dim, ("self_attn",)),
        ("decoder", shape.decoder_layers, shape.decoder_ffn_dim, ("self_attn", "encoder_attn")),
    ):
        for layer in range(layers):
            name = f"model.{side}.layers.{layer}"
            for kind in kinds:
                attention(f"{name}.{kind}")
            linear(f"{name}.fc1", inner, size)
            linear(f"{name}.fc2", size, inner)
            norm(f"{name}.final_layer_norm")
        norm(f"model.{side}.layer_norm")
    matrix("model.encoder.conv1", size, shape.num_mel_bins, 3)
    matrix("model.encoder.conv2", size, size, 3)
    for number in (1, 2):
        found[f"model.encoder.conv{number}.bias"] = rng.normal(0, 0.05, size).astype(np.float32)
    matrix("model.encoder.embed_positions", shape.max_source_positions, size, std=0.1)
    matrix("model.decoder.embed_positions", shape.max_target_positions, size, std=1.0)
    matrix("model.decoder.embed_tokens", shape.vocab_size, size, std=0.4)
    for layer in range(shape.decoder_layers):  # or all audio would sound alike
        found[f"model.decoder.layers.{layer}.encoder_attn.out_proj.weight"] *= _ATTENTIVENESS
        found[f"model.decoder.layers.{layer}.self_attn.out_proj.weight"] *= _ATTENTIVENESS
    # The first number of a hidden state is about the same for all, and carries the biases.
    found["model.decoder.layer_norm.bias"][0] = _BIASED
    found["model.decoder.embed_tokens.weight"][:, 0] = biases / _BIASED
    return found


class WhisperGraphs:
    """Builds the two graphs of a model."""

    def __init__(self, shape: WhisperShape, weights: Weights) -> None:
        self._shape = shape
        self._weights = weights
        self._sinks: list[Node] = []
        self._variables: dict[str, Any] = {}

    def encoder(self, reduction: int = 1) -> ov.Model:
        """Returns `input_features -> last_hidden_state`: f32 [B, mels, 2 T] to f32 [B, T, size].
        Of so many states as `reduction` says, the first is kept."""
        shape, name = self._shape, "model.encoder"
        sizes = [shape.num_mel_bins, 2 * shape.max_source_positions]
        if reduction > 1:
            sizes = [-1, -1]  # Qwen3-ASR's pipeline sets an empty tensor after each audio
        features = parameter("input_features", [-1, *sizes], np.float32)
        hidden = features
        for number in (1, 2):
            kernel = self._constant(f"{name}.conv{number}.weight")
            bias = self._constant(f"{name}.conv{number}.bias", (1, -1, 1))
            hidden = ops.convolution(hidden, kernel, [number], [1], [1], [1])
            hidden = ops.gelu(ops.add(hidden, bias), "erf")
        hidden = ops.transpose(hidden, index([0, 2, 1]))
        hidden = ops.add(hidden, self._constant(f"{name}.embed_positions.weight", (1, -1, 0)))
        heads = shape.encoder_attention_heads
        for layer in range(shape.encoder_layers):
            part = f"{name}.layers.{layer}"
            normed = self._norm(hidden, f"{part}.self_attn_layer_norm")
            keys, values = self._keys_values(normed, f"{part}.self_attn", heads)
            attended = self._attention(normed, keys, values, f"{part}.self_attn", heads, None)
            hidden = self._feed(ops.add(hidden, attended), part)
        hidden = self._norm(hidden, f"{name}.layer_norm")
        kept = index(list(range(0, shape.max_source_positions, reduction)))
        return _model(ops.gather(hidden, kept, index(1)), "last_hidden_state", [features], [])

    def decoder(self, *, keeps_audio: bool = True) -> ov.Model:
        """Returns `input_ids, encoder_hidden_states, beam_idx -> logits`, with a state: i64 [B, T],
        f32 [B, S, size], i32 [B] to f32 [B, T, vocabulary]. `keeps_audio` says whether the keys and
        values of the audio are part of the state."""
        shape, name = self._shape, "model.decoder"
        input_ids = parameter("input_ids", [-1, -1], np.int64)
        audio = parameter("encoder_hidden_states", [-1, -1, shape.d_model], np.float32)
        beam_idx = parameter("beam_idx", [-1], np.int32)
        heads, self._sinks = shape.decoder_attention_heads, []
        size = shape.d_model // heads
        batch = ops.gather(ops.shape_of(input_ids), index([0]), index(0))
        empty = ops.broadcast(
            real(0.0), ops.concat([batch, index([heads]), index([0]), index([size])], 0)
        )
        embeddings = self._constant(f"{name}.embed_tokens.weight")
        hidden = ops.gather(embeddings, ops.convert(input_ids, np.int32), index(0))
        mask: Node | None = None
        for layer in range(shape.decoder_layers):
            part = f"{name}.layers.{layer}"
            if mask is None:
                # The number of tokens before these is that of the keys of the first layer.
                first = self._state(empty, f"{part}.self_attn.key", beam_idx)
                past = ops.gather(ops.shape_of(first), index(2), index(0))
                count = ops.gather(ops.shape_of(input_ids), index(1), index(0))
                places = ops.range(past, ops.add(past, count), index(1), "i64")
                positions = self._constant(f"{name}.embed_positions.weight")
                hidden = ops.add(hidden, ops.gather(positions, places, index(0)))
                seen = ops.range(index(0), ops.add(past, count), index(1), "i64")
                mask = ops.unsqueeze(
                    ops.less_equal(ops.unsqueeze(seen, index(0)), ops.unsqueeze(places, index(1))),
                    index([0, 1]),
                )
            else:
                first = self._state(empty, f"{part}.self_attn.key", beam_idx)
            normed = self._norm(hidden, f"{part}.self_attn_layer_norm")
            keys, values = self._keys_values(normed, f"{part}.self_attn", heads)
            keys = ops.concat([first, keys], 2)
            values = ops.concat(
                [self._state(empty, f"{part}.self_attn.value", beam_idx), values], 2
            )
            self._keep(keys, f"{part}.self_attn.key")
            self._keep(values, f"{part}.self_attn.value")
            attended = self._attention(normed, keys, values, f"{part}.self_attn", heads, mask)
            hidden = ops.add(hidden, attended)
            normed = self._norm(hidden, f"{part}.encoder_attn_layer_norm")
            found = self._keys_values(audio, f"{part}.encoder_attn", heads)
            keys, values = found
            if keeps_audio:
                names = [f"{part}.encoder_attn.{kind}" for kind in ("key", "value")]
                keys, values = map(self._state, found, names, [beam_idx] * 2)
                for node, kept in ((keys, names[0]), (values, names[1])):
                    self._keep(node, kept)
            attended = self._attention(normed, keys, values, f"{part}.encoder_attn", heads, None)
            hidden = self._feed(ops.add(hidden, attended), part)
        hidden = self._norm(hidden, f"{name}.layer_norm")
        logits = ops.matmul(hidden, embeddings, False, True)
        return _model(logits, "logits", [input_ids, audio, beam_idx], self._sinks)

    def _constant(self, name: str, shape: tuple[int, ...] | None = None) -> Node:
        values = self._weights[name].astype(np.float32)
        if shape is not None:
            values = values.reshape([values.shape[-1] if each == 0 else each for each in shape])
        return ops.constant(values)

    def _linear(self, inputs: Node, name: str) -> Node:
        found = ops.matmul(inputs, self._constant(f"{name}.weight"), False, True)
        if f"{name}.bias" not in self._weights:
            return found
        return ops.add(found, self._constant(f"{name}.bias", (1, 1, -1)))

    def _norm(self, hidden: Node, name: str) -> Node:
        normed = ops.mvn(hidden, index([-1]), True, _EPSILON, "INSIDE_SQRT")
        gamma, beta = (self._constant(f"{name}.{kind}", (1, 1, -1)) for kind in ("weight", "bias"))
        return ops.add(ops.multiply(normed, gamma), beta)

    def _feed(self, hidden: Node, part: str) -> Node:
        normed = self._norm(hidden, f"{part}.final_layer_norm")
        wide = ops.gelu(self._linear(normed, f"{part}.fc1"), "erf")
        return ops.add(hidden, self._linear(wide, f"{part}.fc2"))

    def _heads(self, flat: Node, num_heads: int) -> Node:
        split = index([0, 0, num_heads, self._shape.d_model // num_heads])
        return ops.transpose(ops.reshape(flat, split, True), index([0, 2, 1, 3]))

    def _keys_values(self, hidden: Node, name: str, num_heads: int) -> tuple[Node, Node]:
        keys, values = (self._linear(hidden, f"{name}.{kind}_proj") for kind in "kv")
        return self._heads(keys, num_heads), self._heads(values, num_heads)

    def _attention(
        self, hidden: Node, keys: Node, values: Node, name: str, num_heads: int, mask: Node | None
    ) -> Node:
        size = self._shape.d_model
        queries = self._heads(self._linear(hidden, f"{name}.q_proj"), num_heads)
        attended = ops.scaled_dot_product_attention(
            queries, keys, values, mask, real((size // num_heads) ** -0.5)
        )
        # The pipeline finds the attention to the audio by its name.
        attended.set_friendly_name(f"{name}/scaled_dot_product_attention")
        joined = ops.transpose(attended, index([0, 2, 1, 3]))
        return self._linear(ops.reshape(joined, index([0, 0, size]), True), f"{name}.out_proj")

    def _state(self, initial: Node, name: str, beam_idx: Node) -> Node:
        info = util.VariableInfo()
        heads = self._shape.decoder_attention_heads
        info.data_shape = ov.PartialShape([-1, heads, -1, self._shape.d_model // heads])
        info.data_type = ov.Type.f32
        info.variable_id = name
        variable = util.Variable(info)
        self._variables[name] = variable
        return ops.gather(ops.read_value(initial, variable), beam_idx, index(0))

    def _keep(self, node: Node, name: str) -> None:
        self._sinks.append(ops.assign(node, self._variables[name]))


def _model(output: Node, name: str, inputs: list[Node], sinks: list[Node]) -> ov.Model:
    output.output(0).set_names({name})
    return ov.Model([ops.result(output, name=name)], sinks, inputs, "whisper")
