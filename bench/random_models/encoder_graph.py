"""The graph of a BERT-shaped OpenVINO model with random weights, made without torch.

It follows what optimum-intel exports of BERT: a mask of attention made of `attention_mask`,
absolute positions, and the hidden states of the last layer, or the logits of a classifier over the
first token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from bench.random_models.nodes import index, parameter, real
from bench.random_models.weights import Node, QuantizedMatrix, WeightFormat


@dataclass(frozen=True)
class EncoderShape:
    """A BERT-shaped model, named as in Hugging Face's configurations.

    Attributes:
        num_labels: of the classifier; 0 = there is none, and the hidden states are the output.
        weight_format: of the matrices, one of `bench.random_models.weights.WEIGHT_FORMATS`.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    num_labels: int = 0
    weight_format: str = "int8"


ENCODER_SHAPES = {
    "tiny": EncoderShape(32, 64, 2, 4, 256, max_position_embeddings=128, weight_format="fp32"),
    "bge-small": EncoderShape(384, 1536, 12, 12, 30_522),
    "bge-base": EncoderShape(768, 3072, 12, 12, 30_522),
}


class BertGraph:
    """Builds `input_ids, attention_mask, token_type_ids -> last_hidden_state` or `-> logits`.

    The inputs are i64 [B, T]; the output is f32 [B, T, hidden_size] or [B, num_labels].
    """

    def __init__(self, shape: EncoderShape, seed: int) -> None:
        self._shape = shape
        self._rng = np.random.default_rng(seed)
        self._format = WeightFormat(shape.weight_format)

    def build(self) -> ov.Model:
        names = ("input_ids", "attention_mask", "token_type_ids")
        inputs = [parameter(name, [-1, -1], np.int64) for name in names]
        hidden = self._embedding(inputs[0], inputs[2])
        visible = ops.unsqueeze(ops.convert(inputs[1], np.float32), index([1, 2]))
        lowest = float(np.finfo(np.float32).min)
        mask = ops.multiply(ops.subtract(real(1.0), visible), real(lowest))
        for layer in range(self._shape.num_hidden_layers):
            name = f"encoder.layer.{layer}"
            hidden = self._norm(ops.add(hidden, self._attention(hidden, mask, name)))
            hidden = self._norm(ops.add(hidden, self._mlp(hidden, name)))
        output, name = (hidden, "last_hidden_state")
        if self._shape.num_labels:
            output, name = self._classified(hidden), "logits"
        output.output(0).set_names({name})
        return ov.Model([ops.result(output, name=name)], inputs, "bert")

    def _embedding(self, input_ids: Node, token_type_ids: Node) -> Node:
        shape = self._shape
        words = self._matrix(shape.vocab_size, shape.hidden_size, 1.0, "word_embeddings")
        types = self._matrix(shape.type_vocab_size, shape.hidden_size, 0.3, "token_type_embeddings")
        rows = self._rng.normal(0, 0.3, (1, shape.max_position_embeddings, shape.hidden_size))
        length = ops.gather(ops.shape_of(input_ids), index([1]), index(0))
        places = ops.slice(
            ops.constant(rows.astype(np.float32)), index([0]), length, index([1]), index([1])
        )
        found = ops.gather(words, ops.convert(input_ids, np.int32), index(0))
        kinds = ops.gather(types, ops.convert(token_type_ids, np.int32), index(0))
        return self._norm(ops.add(ops.add(found, kinds), places))

    def _matrix(self, rows: int, columns: int, std: float, name: str) -> Node:
        matrix = QuantizedMatrix.random(self._rng, rows, columns, std, self._format.quantization)
        return self._format.node(matrix, f"{name}.weight")

    def _linear(self, inputs: Node, rows: int, columns: int, name: str) -> Node:
        weights = self._matrix(rows, columns, 1.5 / columns**0.5, name)
        bias = self._rng.normal(0, 0.05, (1, 1, rows)).astype(np.float32)
        return ops.add(ops.matmul(inputs, weights, False, True), ops.constant(bias))

    def _norm(self, hidden: Node) -> Node:
        size, epsilon = self._shape.hidden_size, self._shape.layer_norm_eps
        normed = ops.mvn(hidden, index([-1]), True, epsilon, "INSIDE_SQRT")
        gamma = self._rng.uniform(0.8, 1.2, (1, 1, size)).astype(np.float32)
        beta = self._rng.normal(0, 0.05, (1, 1, size)).astype(np.float32)
        return ops.add(ops.multiply(normed, ops.constant(gamma)), ops.constant(beta))

    def _mlp(self, hidden: Node, name: str) -> Node:
        size, inner = self._shape.hidden_size, self._shape.intermediate_size
        wide = ops.gelu(self._linear(hidden, inner, size, f"{name}.intermediate"), "erf")
        return self._linear(wide, size, inner, f"{name}.output")

    def _attention(self, hidden: Node, mask: Node, name: str) -> Node:
        size, num_heads = self._shape.hidden_size, self._shape.num_attention_heads
        split = index([0, 0, num_heads, size // num_heads])

        def heads(kind: str) -> Node:
            flat = self._linear(hidden, size, size, f"{name}.{kind}")
            return ops.transpose(ops.reshape(flat, split, True), index([0, 2, 1, 3]))

        scale = real((size // num_heads) ** -0.5)
        attended = ops.scaled_dot_product_attention(
            heads("query"), heads("key"), heads("value"), mask, scale
        )
        joined = ops.reshape(
            ops.transpose(attended, index([0, 2, 1, 3])), index([0, 0, size]), True
        )
        return self._linear(joined, size, size, f"{name}.dense")

    def _classified(self, hidden: Node) -> Node:
        size, num_labels = self._shape.hidden_size, self._shape.num_labels
        first = ops.gather(hidden, index([0]), index(1))
        pooled = ops.tanh(self._linear(first, size, size, "pooler"))
        scores = self._linear(pooled, num_labels, size, "classifier")
        return ops.reshape(scores, index([0, num_labels]), True)
