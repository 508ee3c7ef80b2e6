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
EXPERTS, CHOSEN, SHARED_INNER = 6, 2, 64
CONV_SPAN = 3
GROUPS, STATE_HEADS, STATE_SIZE = 2, 4, 64
"""Of the delta rule. Mamba 2 has one group, and values that are twice as wide."""
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
        is_joined: whether gates and values are in one tensor: those of experts in new files, those
            of the delta rule in old ones.
    """

    architecture: str = "llama"
    types: tuple[Type, ...] = (Type.F32,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    biases: tuple[str, ...] = ()
    is_tied: bool = False
    is_joined: bool = False
    extra: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=lambda: BYTE_PAIRS)
    seed: int = 0

    @property
    def is_fused(self) -> bool:
        return self.architecture == "phi3"

    @property
    def norms_heads(self) -> bool:
        return self.architecture in ("qwen3", "qwen3moe", "gemma3") or self.mixes in (
            "convolution",
            "delta",
        )

    @property
    def mixes(self) -> str:
        """What layers without attention have."""
        return MIXES.get(self.architecture, "")

    def has_experts(self, layer: int) -> bool:
        if "expert_count" in self.settings:
            return True
        return self.architecture in WITH_EXPERTS and layer >= self.num_dense_layers

    @property
    def num_dense_layers(self) -> int:
        return 1 if self.architecture == "lfm2moe" else 0

    @property
    def has_shared_expert(self) -> bool:
        return self.has_experts(LAYERS) and self.architecture in WITH_SHARED_EXPERTS

    def is_recurrent(self, layer: int) -> bool:
        return bool(self.mixes) and layer != (LAYERS - 1 if self.mixes == "delta" else 1)

    @property
    def norms_outputs(self) -> bool:
        return self.architecture == "gemma3"


WITH_SHARED_EXPERTS = ("qwen2moe", "qwen3next", "qwen35moe", "granitemoe", "granitehybrid")
WITH_EXPERTS = (
    *WITH_SHARED_EXPERTS[:4], "qwen3moe", "gpt-oss", "lfm2moe", "olmoe",
)  # fmt: skip
MIXES = {
    **dict.fromkeys(("lfm2", "lfm2moe"), "convolution"),
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), "delta"),
    "granitehybrid": "scan",
}


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
    if model.has_experts(LAYERS):
        sizes |= {"expert_count": EXPERTS, "expert_used_count": CHOSEN}
        sizes |= {"expert_feed_forward_length": INNER}
    if model.has_shared_expert:
        sizes |= {"expert_shared_feed_forward_length": SHARED_INNER}
    if model.mixes == "delta":
        sizes |= {"full_attention_interval": LAYERS, "rope.dimension_count": 8}
        sizes |= _state_sizes(GROUPS, STATE_SIZE)
        if model.architecture != "qwen3next":
            sizes |= {"rope.dimension_sections": [2, 1, 1, 0]}
    elif model.mixes:
        heads = [0 if model.is_recurrent(layer) else KV_HEADS for layer in range(LAYERS)]
        sizes |= {"attention.head_count_kv": heads}
        if model.mixes == "scan":
            sizes |= {"rope.scaling.finetuned": False, **_state_sizes(1, 2 * STATE_SIZE)}
        else:
            sizes |= {"shortconv.l_cache": CONV_SPAN}
    if model.architecture == "lfm2moe":
        sizes |= {"leading_dense_block_count": 1, "expert_gating_func": 2}
    if model.architecture.startswith("granite"):
        sizes |= {"attention.scale": 0.3, "embedding_scale": 3.0, "residual_scale": 0.4}
        sizes |= {"logit_scale": 2.0}
    for name, value in {**sizes, **model.settings}.items():
        add_value(writer, f"{model.architecture}.{name}", value)
    for name, value in model.tokenizer.items():
        add_value(writer, name, value)
    _add_tensors(writer, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _state_sizes(num_groups: int, value_size: int) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": 4,
        "ssm.state_size": STATE_SIZE,
        "ssm.group_count": num_groups,
        "ssm.time_step_rank": STATE_HEADS,
        "ssm.inner_size": STATE_HEADS * value_size,
    }


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

    def values(name: str, *shape: int, mean: float = 0, std: float = 0.3) -> None:
        writer.add_tensor(name, rng.normal(mean, std, shape).astype(np.float32))

    def recurrent(block: str) -> None:
        if model.mixes == "convolution":
            matrix(f"{block}.shortconv.in_proj", 3 * HIDDEN, HIDDEN, 0.1)
            matrix(f"{block}.shortconv.out_proj", HIDDEN, HIDDEN, 0.1)
            values(f"{block}.shortconv.conv.weight", HIDDEN, CONV_SPAN, std=0.6)
            return
        is_scan = model.mixes == "scan"
        inner = STATE_HEADS * STATE_SIZE * (2 if is_scan else 1)
        joined = inner + 2 * (1 if is_scan else GROUPS) * STATE_SIZE
        values(f"{block}.ssm_conv1d.weight", joined, 4, std=0.5)
        values(f"{block}.ssm_dt.bias", STATE_HEADS, mean=-1)
        rates = -rng.uniform(0.3, 2, STATE_HEADS).astype(np.float32)
        matrix(f"{block}.ssm_out", HIDDEN, inner, 0.1)
        if is_scan:
            matrix(f"{block}.ssm_in", inner + joined + STATE_HEADS, HIDDEN, 0.1)
            writer.add_tensor(f"{block}.ssm_a", rates[:, None])
            values(f"{block}.ssm_conv1d.bias", joined)
            values(f"{block}.ssm_d", STATE_HEADS, 1, mean=1)
            values(f"{block}.ssm_norm.weight", 1, inner, mean=1)
            return
        writer.add_tensor(f"{block}.ssm_a", rates)
        values(f"{block}.ssm_norm.weight", STATE_SIZE, mean=1)
        if model.is_joined and model.architecture == "qwen3next":
            matrix(f"{block}.ssm_in", joined + inner, HIDDEN, 0.1)
        else:
            matrix(f"{block}.attn_qkv", joined, HIDDEN, 0.1)
            matrix(f"{block}.attn_gate", inner, HIDDEN, 0.1)
        if model.architecture == "qwen3next":
            matrix(f"{block}.ssm_ba", 2 * STATE_HEADS, HIDDEN, 0.1)
        else:
            matrix(f"{block}.ssm_alpha", STATE_HEADS, HIDDEN, 0.1)
            matrix(f"{block}.ssm_beta", STATE_HEADS, HIDDEN, 0.1)

    width, kv_width = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
    num_tokens = len(model.tokenizer["tokenizer.ggml.tokens"])
    matrix("token_embd", num_tokens, HIDDEN, 0.3)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        vector(f"{block}.attn_norm.weight", HIDDEN, 1)
        is_oss = model.architecture == "gpt-oss"
        is_post = is_oss or model.mixes == "delta"
        vector(f"{block}.{'post_attention' if is_post else 'ffn'}_norm.weight", HIDDEN, 1)
        if is_oss:
            vector(f"{block}.attn_sinks.weight", HEADS, 0, 1)
            vector(f"{block}.ffn_gate_inp.bias", EXPERTS, 0, 0.3)
            for name, size in (("gate", INNER), ("up", INNER), ("down", HIDDEN)):
                values = rng.normal(0, 0.3, (EXPERTS, size)).astype(np.float32)
                writer.add_tensor(f"{block}.ffn_{name}_exps.bias", values)
        if model.is_recurrent(layer):
            recurrent(block)
        elif model.is_fused:
            matrix(f"{block}.attn_qkv", width + 2 * kv_width, HIDDEN, 0.15)
            matrix(f"{block}.ffn_up", 2 * INNER, HIDDEN, 0.08)
        else:
            has_gates = model.mixes == "delta"
            matrix(f"{block}.attn_q", width * (2 if has_gates else 1), HIDDEN, 0.15)
            matrix(f"{block}.attn_k", kv_width, HIDDEN, 0.15)
            matrix(f"{block}.attn_v", kv_width, HIDDEN, 0.15)
        if not model.is_recurrent(layer):
            matrix(f"{block}.attn_output", HIDDEN, width, 0.1)
        if model.has_experts(layer):
            router = rng.normal(0, 0.1, (EXPERTS, HIDDEN)).astype(np.float32)
            writer.add_tensor(f"{block}.ffn_gate_inp.weight", router)
            if model.is_joined:
                matrix(f"{block}.ffn_gate_up_exps", 2 * INNER, HIDDEN, 0.08, EXPERTS)
            else:
                matrix(f"{block}.ffn_gate_exps", INNER, HIDDEN, 0.08, EXPERTS)
                matrix(f"{block}.ffn_up_exps", INNER, HIDDEN, 0.08, EXPERTS)
            matrix(f"{block}.ffn_down_exps", HIDDEN, INNER, 0.1, EXPERTS)
            if model.architecture == "lfm2moe":
                vector(f"{block}.exp_probs_b.bias", EXPERTS, 0, 0.2)
            if model.has_shared_expert:
                matrix(f"{block}.ffn_gate_shexp", SHARED_INNER, HIDDEN, 0.08)
                matrix(f"{block}.ffn_up_shexp", SHARED_INNER, HIDDEN, 0.08)
                matrix(f"{block}.ffn_down_shexp", HIDDEN, SHARED_INNER, 0.1)
                if model.architecture.startswith("qwen"):
                    vector(f"{block}.ffn_gate_inp_shexp.weight", HIDDEN, 0)
        else:
            if not model.is_fused:
                matrix(f"{block}.ffn_gate", INNER, HIDDEN, 0.08)
                matrix(f"{block}.ffn_up", INNER, HIDDEN, 0.08)
            matrix(f"{block}.ffn_down", HIDDEN, INNER, 0.1)
        if model.norms_heads and not model.is_recurrent(layer):
            vector(f"{block}.attn_q_norm.weight", HEAD_SIZE, 1.5)
            vector(f"{block}.attn_k_norm.weight", HEAD_SIZE, 1.5)
        if model.architecture == "olmoe":
            vector(f"{block}.attn_q_norm.weight", width, 1.5)
            vector(f"{block}.attn_k_norm.weight", kv_width, 1.5)
        if model.norms_outputs:
            vector(f"{block}.post_attention_norm.weight", HIDDEN, 1)
            vector(f"{block}.post_ffw_norm.weight", HIDDEN, 1)
    last = "token_embd" if model.mixes == "convolution" else "output"
    vector(f"{last}_norm.weight", HIDDEN, 1)
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
