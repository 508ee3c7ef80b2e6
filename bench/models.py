"""Makes random-weight Llama-shaped OpenVINO models of real shapes, without torch.

The graph follows what optimum-intel 2.2 exports for `LlamaForCausalLM` with int8 weights (stateful
key/value cache, asymmetric u8 weights per output channel), so that the paged attention
transformation and the plugins' fusions treat it like a real model of that shape.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama-shaped model, named as in Hugging Face's `LlamaConfig`."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int = 8192
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def kv_size(self) -> int:
        return self.num_key_value_heads * self.head_dim


SHAPES = {
    "tiny": Shape(64, 160, 2, 4, 2, 512, max_position_embeddings=2048),
    "demo": Shape(192, 512, 4, 6, 2, 1536, max_position_embeddings=2048),  # fastovms/demo_model
    "135m": Shape(576, 1536, 30, 9, 3, 49_152),  # SmolLM2-135M
    "360m": Shape(960, 2560, 32, 15, 5, 49_152),  # SmolLM2-360M
    "0.5b": Shape(896, 4864, 24, 14, 2, 151_936, rope_theta=1_000_000.0),  # Qwen2.5-0.5B
    "1b": Shape(2048, 8192, 16, 32, 8, 128_256, rope_theta=500_000.0),  # Llama-3.2-1B
}

BIAS_CHANNEL = 0
"""A channel that every embedding sets and no layer writes to. Through it the head, which has no
bias, gives a token the same low logit at every position."""

LOGIT_STD = 4.0
"""About that of trained models: at temperature 1 a few dozen tokens share the probability."""

SCORE_STD = 2.0
"""Of the attention scores: each position attends to a few others, not to the mean of all, so that
the text depends on its context and greedy decoding does not fall into a cycle."""


@dataclass(frozen=True)
class Int8Matrix:
    """`(values - zero_point) * scale`: u8 [rows, columns], u8 [rows, 1], f16 [rows, 1]."""

    values: NDArray[np.uint8]
    zero_point: NDArray[np.uint8]
    scale: NDArray[np.float16]

    @classmethod
    def random(cls, rng: np.random.Generator, rows: int, columns: int, std: float) -> Int8Matrix:
        """Uniform entries of mean about 0 and standard deviation about `std`."""
        values = rng.integers(0, 256, (rows, columns), dtype=np.uint8)
        zero_point = rng.integers(120, 137, (rows, 1), dtype=np.uint8)
        scale = std * np.sqrt(12) / 256 * rng.uniform(0.9, 1.1, (rows, 1))
        return cls(values, zero_point, scale.astype(np.float16))

    def clear_rows(self, rows: slice) -> None:
        """Makes `rows` zero, in place."""
        self.values[rows] = self.zero_point[rows]

    def node(self, name: str) -> Node:
        """The f32 weights as the subgraph NNCF writes, which plugins fold into its consumer."""
        values = ops.constant(self.values, shared_memory=True, name=name)
        zero_point = ops.constant(self.zero_point, name=f"{name}/zero_point")
        shifted = ops.subtract(ops.convert(values, "f16"), ops.convert(zero_point, "f16"))
        scaled = ops.multiply(shifted, ops.constant(self.scale, name=f"{name}/scale"))
        return ops.convert(scaled, "f32")


class LlamaGraph:
    """Builds `input_ids, attention_mask, position_ids, beam_idx -> logits` with random weights.

    The inputs are i64 [B, Q], [B, K], [B, Q] and i32 [B], the output is f32 [B, Q, vocab_size]:
    Q new tokens of the K in the context. Ids from `num_tokens` on get logits far below all others.
    """

    def __init__(self, shape: Shape, num_tokens: int, seed: int) -> None:
        self._shape = shape
        self._num_tokens = num_tokens
        self._rng = np.random.default_rng(seed)
        self._assigns: list[Node] = []
        self._input_ids = _parameter("input_ids", [-1, -1], np.int64)
        self._attention_mask = _parameter("attention_mask", [-1, -1], np.int64)
        self._position_ids = _parameter("position_ids", [-1, -1], np.int64)
        self._beam_idx = _parameter("beam_idx", [-1], np.int32)

    def build(self) -> ov.Model:
        self._cos, self._sin = self._rotations()
        self._mask: Node = None
        hidden = self._embedding()
        for layer in range(self._shape.num_hidden_layers):
            name = f"model.layers.{layer}"
            normed = self._norm(hidden, f"{name}.input_layernorm")
            hidden = ops.add(hidden, self._attention(normed, layer, f"{name}.self_attn"))
            normed = self._norm(hidden, f"{name}.post_attention_layernorm")
            hidden = ops.add(hidden, self._mlp(normed, f"{name}.mlp"))
        logits = self._head(self._norm(hidden, "model.norm"))
        logits.output(0).set_names({"logits"})
        inputs = [self._input_ids, self._attention_mask, self._position_ids, self._beam_idx]
        return ov.Model([ops.result(logits, name="logits")], self._assigns, inputs, "llama")

    def _embedding(self) -> Node:
        weights = Int8Matrix.random(self._rng, self._shape.vocab_size, self._shape.hidden_size, 1.0)
        weights.values[:, BIAS_CHANNEL] = 255
        ids = ops.convert(self._input_ids, np.int32)
        return ops.gather(weights.node("model.embed_tokens.weight"), ids, _index(0))

    def _head(self, hidden: Node) -> Node:
        size = self._shape.hidden_size
        std = LOGIT_STD / size**0.5
        weights = Int8Matrix.random(self._rng, self._shape.vocab_size, size, std)
        unused = slice(self._num_tokens, None)
        weights.clear_rows(unused)
        weights.values[unused, BIAS_CHANNEL] = 0
        weights.scale[unused] = 10 * LOGIT_STD / 128
        return ops.matmul(hidden, weights.node("lm_head.weight"), False, True)

    def _linear(self, inputs: Node, rows: int, columns: int, std: float, name: str) -> Node:
        """Projects [B, Q, columns] to [B, Q, rows]."""
        weights = Int8Matrix.random(self._rng, rows, columns, std)
        return ops.matmul(inputs, weights.node(f"{name}.weight"), False, True)

    def _residual(self, inputs: Node, columns: int, gain: float, name: str) -> Node:
        """Projects to the residual stream; all layers together add about what an embedding has."""
        size, num_layers = self._shape.hidden_size, self._shape.num_hidden_layers
        weights = Int8Matrix.random(self._rng, size, columns, gain / (columns * num_layers) ** 0.5)
        weights.clear_rows(slice(BIAS_CHANNEL, BIAS_CHANNEL + 1))
        return ops.matmul(inputs, weights.node(f"{name}.weight"), False, True)

    def _norm(self, hidden: Node, name: str) -> Node:
        variance = ops.reduce_mean(ops.power(hidden, _float(2.0)), _index([-1]), True)
        deviation = ops.sqrt(ops.add(variance, _float(self._shape.rms_norm_eps)))
        normed = ops.multiply(hidden, ops.divide(_float(1.0), deviation))
        gamma = self._rng.uniform(0.8, 1.2, (1, 1, self._shape.hidden_size)).astype(np.float32)
        return ops.multiply(ops.constant(gamma, name=f"{name}.weight"), normed)

    def _mlp(self, hidden: Node, name: str) -> Node:
        inner, size = self._shape.intermediate_size, self._shape.hidden_size
        gate = self._linear(hidden, inner, size, size**-0.5, f"{name}.gate_proj")
        up = self._linear(hidden, inner, size, size**-0.5, f"{name}.up_proj")
        return self._residual(ops.multiply(ops.swish(gate), up), inner, 1.7, f"{name}.down_proj")

    def _attention(self, hidden: Node, layer: int, name: str) -> Node:
        shape = self._shape
        num_heads, num_kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        std = (SCORE_STD / shape.hidden_size) ** 0.5
        query = self._heads(hidden, num_heads, std, f"{name}.q_proj")
        key = self._heads(hidden, num_kv_heads, std, f"{name}.k_proj")
        value = self._heads(hidden, num_kv_heads, shape.hidden_size**-0.5, f"{name}.v_proj")
        key = self._cached(self._rotated(key, num_kv_heads), layer, "key")
        value = self._cached(value, layer, "value")
        attended = ops.scaled_dot_product_attention(
            self._rotated(query, num_heads),
            self._repeated(key),
            self._repeated(value),
            self._mask,
            _float(shape.head_dim**-0.5),
        )
        joined = ops.reshape(
            ops.transpose(attended, _index([0, 2, 1, 3])), _index([0, 0, shape.hidden_size]), True
        )
        return self._residual(joined, shape.hidden_size, 1.0, f"{name}.o_proj")

    def _heads(self, hidden: Node, num_heads: int, std: float, name: str) -> Node:
        """Projects to [B, num_heads, Q, head_dim]."""
        size, head_dim = self._shape.hidden_size, self._shape.head_dim
        flat = self._linear(hidden, num_heads * head_dim, size, std, name)
        heads = ops.reshape(flat, _index([0, 0, num_heads, head_dim]), True)
        return ops.transpose(heads, _index([0, 2, 1, 3]))

    def _cached(self, new: Node, layer: int, kind: str) -> Node:
        """Appends to the variable of this layer and kind: [B, num_kv_heads, K, head_dim]."""
        num_kv_heads, head_dim = self._shape.num_key_value_heads, self._shape.head_dim
        batch_size = _dimension(self._input_ids, [0])
        empty = ops.broadcast(
            _float(0.0), ops.concat([batch_size, _index([num_kv_heads, 0, head_dim])], 0)
        )
        variable = f"past_key_values.{layer}.{kind}present.{layer}.{kind}"
        stored = ops.read_value(empty, variable, np.float32, [-1, num_kv_heads, -1, head_dim])
        past = ops.gather(stored, self._beam_idx, _index(0))
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
            ops.unsqueeze(heads, _index(2)),
            _index([1, 1, num_groups, 1, 1]),
            broadcast_spec="BIDIRECTIONAL",
        )
        return ops.reshape(
            grouped, _index([0, shape.num_attention_heads, -1, shape.head_dim]), True
        )

    def _causal_mask(self, past: Node) -> Node:
        """What each new token may not see gets f16's lowest value: f32 [B, 1, Q, K]."""
        past_len, num_new = _dimension(past, 2), _dimension(self._input_ids, 1)
        total = ops.add(past_len, num_new)
        key_index = ops.unsqueeze(ops.range(_index(0), total, _index(1), "i64"), _index([0, 1, 2]))
        new_index = ops.unsqueeze(ops.range(past_len, total, _index(1), "i64"), _index([0, 1, 3]))
        is_token = ops.unsqueeze(ops.convert(self._attention_mask, bool), _index([1, 2]))
        visible = ops.logical_and(ops.less_equal(key_index, new_index), is_token)
        return ops.select(visible, _float(0.0), _float(-65504.0))

    def _rotations(self) -> tuple[Node, Node]:
        """Cosine and sine of the rotary position embedding: f32 [B, 1, Q, head_dim]."""
        exponents = np.arange(0, self._shape.head_dim, 2, dtype=np.float32) / self._shape.head_dim
        frequencies = (self._shape.rope_theta**-exponents).reshape(1, -1, 1)
        positions = ops.convert(ops.unsqueeze(self._position_ids, _index(1)), np.float32)
        angles = ops.matmul(ops.constant(frequencies), positions, False, False)
        angles = ops.transpose(angles, _index([0, 2, 1]))
        angles = ops.concat([angles, angles], -1)
        return ops.unsqueeze(ops.cos(angles), _index(1)), ops.unsqueeze(ops.sin(angles), _index(1))

    def _rotated(self, heads: Node, num_heads: int) -> Node:
        half = self._shape.head_dim // 2
        start, middle, end = _index([0]), _index([half]), _index([np.iinfo(np.int64).max])
        step, axis = _index([1]), _index([3])
        first = ops.slice(heads, start, middle, step, axis)
        second = ops.slice(heads, middle, end, step, axis)
        turned = ops.concat([ops.multiply(second, _float(-1.0)), first], -1)
        return ops.add(ops.multiply(heads, self._cos), ops.multiply(turned, self._sin))


def _parameter(name: str, shape: list[int], dtype: type) -> Node:
    node = ops.parameter(shape, dtype, name=name)
    node.output(0).set_names({name})
    return node


def _index(value: int | list[int]) -> Node:
    return ops.constant(np.array(value, np.int64))


def _float(value: float) -> Node:
    return ops.constant(np.array(value, np.float32))


def _dimension(node: Node, axis: int | list[int]) -> Node:
    return ops.gather(ops.shape_of(node), _index(axis), _index(0))


TOKENIZER_FILES = (
    "openvino_tokenizer.xml",
    "openvino_tokenizer.bin",
    "openvino_detokenizer.xml",
    "openvino_detokenizer.bin",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
DEMO_MODEL = Path(__file__).parents[1] / "fastovms" / "demo_model"


def write_model(shape: Shape, directory: Path, tokenizer: Path = DEMO_MODEL, seed: int = 0) -> None:
    """Writes a complete model directory, as optimum-intel lays one out.

    The tokenizer and the end-of-text ids are those of the model directory `tokenizer`. Ids it does
    not know are never generated; the vocabulary grows when the tokenizer's is larger than the
    shape's. Raises FileNotFoundError when `tokenizer` lacks one of `TOKENIZER_FILES`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, directory / name)
    num_tokens = _tokenizer_size(directory / "tokenizer.json")
    shape = replace(shape, vocab_size=max(shape.vocab_size, num_tokens))
    generation = json.loads((directory / "generation_config.json").read_text())
    config = _config(shape, generation["eos_token_id"], generation.get("bos_token_id"))
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    model = LlamaGraph(shape, num_tokens, seed).build()
    ov.save_model(model, directory / "openvino_model.xml", compress_to_fp16=False)


def _tokenizer_size(path: Path) -> int:
    """One more than the highest id in a Hugging Face `tokenizer.json`."""
    tokenizer = json.loads(path.read_text())
    added: list[int] = [token["id"] for token in tokenizer["added_tokens"]]
    return max(len(tokenizer["model"]["vocab"]) - 1, *added) + 1


def _config(shape: Shape, eos: int | list[int], bos: int | None) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **asdict(shape),
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": bos,
        "eos_token_id": eos,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.models", description=__doc__)
    parser.add_argument("name", choices=SHAPES, help="the shape")
    parser.add_argument(
        "directory", nargs="?", type=Path, help="where to write (default: bench/models/NAME)"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        default=DEMO_MODEL,
        metavar="DIR",
        help="model directory to take the tokenizer from (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: %(default)s)")
    options = parser.parse_args(arguments)
    directory = options.directory or Path(__file__).with_suffix("") / options.name
    start = time.perf_counter()
    try:
        write_model(SHAPES[options.name], directory, options.tokenizer, options.seed)
    except FileNotFoundError as error:
        parser.error(f"--tokenizer: no such file: {error.filename}")
    size = (directory / "openvino_model.bin").stat().st_size / 1e6
    print(f"{directory}: {size:.0f} MB of weights in {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
