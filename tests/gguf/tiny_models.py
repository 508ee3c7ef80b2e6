"""Writes tiny GGUF models with random weights, with llama.cpp's own writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

HIDDEN, INNER, HEAD_SIZE, HEADS, KV_HEADS, LAYERS = 256, 256, 16, 4, 2, 3
EXPERTS, CHOSEN = 6, 2
CONV_SPAN = 3
FIRST_SCALE = {
    Type.Q4_0: 0, Type.Q4_1: 0, Type.Q5_0: 0, Type.Q5_1: 0, Type.Q8_0: 0, Type.Q2_K: 80,
    Type.Q3_K: 108, Type.Q4_K: 0, Type.Q5_K: 0, Type.Q6_K: 208, Type.IQ4_NL: 0, Type.IQ4_XS: 0,
    Type.MXFP4: 0,
}  # fmt: skip
"""The offset of a block's f16 scale."""
WITH_MINIMUM = {Type.Q4_1, Type.Q5_1, Type.Q2_K, Type.Q4_K, Type.Q5_K}
"""Types with a minimum after the scale."""


def byte_tokens() -> list[str]:
    """Returns GPT-2's characters for bytes in the order of the bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + n) for n in range(256))
    return [chr(byte) if byte in shown else next(others) for byte in range(256)]


TOKENS = ["<|end_of_text|>", "<|begin_of_text|>", "<|im_end|>"]
TOKENS += [*byte_tokens(), "he", "ll", "hell", "\u0120t"]
MERGES = ["h e", "l l", "he ll", "\u0120 t"]
BYTE_PAIRS: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "llama-bpe",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(TOKENS) - 3),
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
}


@dataclass
class TinyModel:
    """A model to write.

    Attributes:
        types: the types of matrices in turn; where rows are too short for one, Q8_0 replaces it, or
            F16 where they are too short for that.
        settings: settings of the architecture beside the sizes.
        biases: the projections with biases: "attn_q", ...
    """

    architecture: str = "llama"
    types: tuple[Type, ...] = (Type.F32,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    biases: tuple[str, ...] = ()
    is_tied: bool = False
    extra: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=lambda: BYTE_PAIRS)
    seed: int = 0

    @property
    def is_fused(self) -> bool:
        return self.architecture == "phi3"

    @property
    def norms_heads(self) -> bool:
        return self.architecture in ("qwen3", "qwen3moe", "gemma3", "lfm2")

    @property
    def has_experts(self) -> bool:
        return self.architecture in ("qwen3moe", "gpt-oss")

    def has_convolution(self, layer: int) -> bool:
        return self.architecture == "lfm2" and layer != 1

    @property
    def norms_outputs(self) -> bool:
        return self.architecture == "gemma3"


def write_model(path: Path, model: TinyModel, *, tensors_per_part: int = 0) -> None:
    """Writes a file, or several parts whose names follow from the path."""
    writer = gguf.GGUFWriter(path, model.architecture, split_max_tensors=tensors_per_part)
    sizes: dict[str, Any] = {
        "block_count": LAYERS,
        "context_length": 512,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_SIZE,
        "attention.value_length": HEAD_SIZE,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": HEAD_SIZE,
        "rope.freq_base": 10000.0,
    }
    if model.has_experts:
        sizes |= {"expert_count": EXPERTS, "expert_used_count": CHOSEN}
        sizes |= {"expert_feed_forward_length": INNER}
    if model.architecture == "lfm2":
        heads = [0 if model.has_convolution(layer) else KV_HEADS for layer in range(LAYERS)]
        sizes |= {"attention.head_count_kv": heads, "shortconv.l_cache": CONV_SPAN}
    for name, value in {**sizes, **model.settings}.items():
        add_value(writer, f"{model.architecture}.{name}", value)
    for name, value in model.tokenizer.items():
        add_value(writer, name, value)
    _add_tensors(writer, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_value(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case str():
            writer.add_string(name, value)
        case _:
            writer.add_array(name, list(value))


def _add_tensors(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    rng = np.random.default_rng(model.seed)
    num_matrices = 0

    def matrix(name: str, rows: int, columns: int, std: float, num: int = 0) -> None:
        """Adds a matrix, or `num` matrices in one tensor."""
        nonlocal num_matrices
        kind = fitting(model.types[num_matrices % len(model.types)], columns)
        num_matrices += 1
        values = random_rows(rng, rows * (num or 1), columns, kind, std)
        values = values.reshape(num, rows, -1) if num else values
        writer.add_tensor(f"{name}.weight", values, raw_dtype=kind)
        if name.rpartition(".")[2] in model.biases:
            vector(f"{name}.bias", rows, 0, 0.3)

    def vector(name: str, size: int, mean: float, std: float = 0.1) -> None:
        writer.add_tensor(name, rng.normal(mean, std, size).astype(np.float32))

    width, kv_width = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
    num_tokens = len(model.tokenizer["tokenizer.ggml.tokens"])
    matrix("token_embd", num_tokens, HIDDEN, 0.3)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        vector(f"{block}.attn_norm.weight", HIDDEN, 1)
        is_oss = model.architecture == "gpt-oss"
        vector(f"{block}.{'post_attention' if is_oss else 'ffn'}_norm.weight", HIDDEN, 1)
        if is_oss:
            vector(f"{block}.attn_sinks.weight", HEADS, 0, 1)
            vector(f"{block}.ffn_gate_inp.bias", EXPERTS, 0, 0.3)
            for name, size in (("gate", INNER), ("up", INNER), ("down", HIDDEN)):
                values = rng.normal(0, 0.3, (EXPERTS, size)).astype(np.float32)
                writer.add_tensor(f"{block}.ffn_{name}_exps.bias", values)
        if model.has_convolution(layer):
            matrix(f"{block}.shortconv.in_proj", 3 * HIDDEN, HIDDEN, 0.1)
            matrix(f"{block}.shortconv.out_proj", HIDDEN, HIDDEN, 0.1)
            factors = rng.normal(0, 0.6, (HIDDEN, CONV_SPAN)).astype(np.float32)
            writer.add_tensor(f"{block}.shortconv.conv.weight", factors)
        elif model.is_fused:
            matrix(f"{block}.attn_qkv", width + 2 * kv_width, HIDDEN, 0.15)
            matrix(f"{block}.ffn_up", 2 * INNER, HIDDEN, 0.08)
        else:
            matrix(f"{block}.attn_q", width, HIDDEN, 0.15)
            matrix(f"{block}.attn_k", kv_width, HIDDEN, 0.15)
            matrix(f"{block}.attn_v", kv_width, HIDDEN, 0.15)
        if not model.has_convolution(layer):
            matrix(f"{block}.attn_output", HIDDEN, width, 0.1)
        if model.has_experts:
            router = rng.normal(0, 0.1, (EXPERTS, HIDDEN)).astype(np.float32)
            writer.add_tensor(f"{block}.ffn_gate_inp.weight", router)
            matrix(f"{block}.ffn_gate_exps", INNER, HIDDEN, 0.08, EXPERTS)
            matrix(f"{block}.ffn_up_exps", INNER, HIDDEN, 0.08, EXPERTS)
            matrix(f"{block}.ffn_down_exps", HIDDEN, INNER, 0.1, EXPERTS)
        else:
            if not model.is_fused:
                matrix(f"{block}.ffn_gate", INNER, HIDDEN, 0.08)
                matrix(f"{block}.ffn_up", INNER, HIDDEN, 0.08)
            matrix(f"{block}.ffn_down", HIDDEN, INNER, 0.1)
        if model.norms_heads and not model.has_convolution(layer):
            vector(f"{block}.attn_q_norm.weight", HEAD_SIZE, 1.5)
            vector(f"{block}.attn_k_norm.weight", HEAD_SIZE, 1.5)
        if model.norms_outputs:
            vector(f"{block}.post_attention_norm.weight", HIDDEN, 1)
            vector(f"{block}.post_ffw_norm.weight", HIDDEN, 1)
    vector(f"{'token_embd' if model.architecture == 'lfm2' else 'output'}_norm.weight", HIDDEN, 1)
    if not model.is_tied:
        matrix("output", num_tokens, HIDDEN, 0.2)
    for name, values in model.extra.items():
        writer.add_tensor(name, values.astype(np.float32))


def fitting(kind: Type, num_columns: int) -> Type:
    """Returns the type, or its fallback for short rows, as in llama.cpp."""
    for each in (kind, Type.Q8_0):
        if num_columns % gguf.GGML_QUANT_SIZES[each][0] == 0:
            return each
    return Type.F16


def random_rows(
    rng: np.random.Generator, rows: int, columns: int, kind: Type, std: float
) -> NDArray[Any]:
    """Returns encoded random numbers. Blocks that the package cannot quantize consist of random
    codes with scales that give the same deviation."""
    if kind in (Type.F32, Type.F16, Type.BF16):
        return gguf.quantize(rng.normal(0, std, (rows, columns)).astype(np.float32), kind)
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, columns // size, num_bytes)).astype(np.uint8)
    if kind is Type.MXFP4:  # the scales are powers of two
        blocks[..., 0] = 127 + np.round(np.log2(std / 5)) + rng.integers(0, 2, blocks.shape[:2])
        return blocks.reshape(rows, -1)
    scale = np.full((rows, columns // size, 1), std / 50)
    for factor in (1.0, None):
        if factor is None:
            factor = std / gguf.dequantize(blocks.reshape(rows, -1), kind).std()
        scale = scale * factor * (rng.uniform(0.8, 1.2, scale.shape))
        start = FIRST_SCALE[kind]
        blocks[..., start : start + 2] = scale.astype(np.float16).view(np.uint8)
        if kind in WITH_MINIMUM:
            sign = -7.5 if kind is Type.Q4_1 else -15.5 if kind is Type.Q5_1 else 7.5
            if kind in (Type.Q4_K, Type.Q5_K, Type.Q2_K):
                sign = 1.0 if kind is Type.Q2_K else sign * (2 if kind is Type.Q5_K else 1)
            minimum = (scale * sign).astype(np.float16).view(np.uint8)
            blocks[..., start + 2 : start + 4] = minimum
    return blocks.reshape(rows, -1)
