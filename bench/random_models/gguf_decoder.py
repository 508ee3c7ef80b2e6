"""Writes GGUF models with random weights, of the architectures that the server reads, with
llama.cpp's own writer: tiny ones for tests, and those of `bench.gguf_models`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

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


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model; the defaults are those of tiny models in tests.

    Attributes:
        inner: of an MLP.
        expert_inner: of an expert's MLP.
        shared_inner: of the MLP that every token takes beside its experts.
        num_chosen: experts of a token.
        attention: the layers with attention in a model that has other layers, too.
        conv_span: tokens that a short convolution spans.
        num_groups: groups of heads that share keys of the delta rule; Mamba 2 has one group here.
        state_heads: heads of recurrent states.
        state_size: of a head's keys, and of the values of the delta rule.
        scan_values: of a head's values in Mamba 2.
    """

    hidden: int = 256
    inner: int = 256
    head_size: int = 16
    heads: int = 4
    kv_heads: int = 2
    layers: int = 3
    num_experts: int = 6
    num_chosen: int = 2
    expert_inner: int = 256
    shared_inner: int = 64
    attention: tuple[int, ...] = (1,)
    attention_interval: int = 3
    conv_span: int = 3
    num_groups: int = 2
    state_heads: int = 4
    state_size: int = 64
    scan_values: int = 128
    context_length: int = 512


TINY = Sizes()


@dataclass(frozen=True)
class GgufModel:
    """A model to write.

    Attributes:
        types: the types of matrices in turn; where rows are too short for one, Q8_0 replaces it, or
            F16 where they are too short for that.
        settings: settings of the architecture beside the sizes.
        biases: the projections with biases: "attn_q", ...
        expert_type: of the matrices of experts, where it is not one of `types`.
        head_type: of the matrix of the output, likewise.
        silent: tokens whose logits are 0.
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
    sizes: Sizes = TINY
    expert_type: Type | None = None
    head_type: Type | None = None
    silent: Collection[int] = ()

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
        return self.has_experts(self.sizes.layers) and self.architecture in WITH_SHARED_EXPERTS

    def is_recurrent(self, layer: int) -> bool:
        if self.mixes == "delta":
            return bool((layer + 1) % self.sizes.attention_interval)
        return bool(self.mixes) and layer not in self.sizes.attention

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


def write_model(path: Path, model: GgufModel, *, tensors_per_part: int = 0) -> None:
    """Writes a file, or several parts whose names follow from the path."""
    of = model.sizes
    writer = gguf.GGUFWriter(path, model.architecture, split_max_tensors=tensors_per_part)
    sizes: dict[str, Any] = {
        "block_count": of.layers,
        "context_length": of.context_length,
        "embedding_length": of.hidden,
        "feed_forward_length": of.inner,
        "attention.head_count": of.heads,
        "attention.head_count_kv": of.kv_heads,
        "attention.key_length": of.head_size,
        "attention.value_length": of.head_size,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": of.head_size,
        "rope.freq_base": 10000.0,
    }
    if model.has_experts(of.layers):
        sizes |= {"expert_count": of.num_experts, "expert_used_count": of.num_chosen}
        sizes |= {"expert_feed_forward_length": of.expert_inner}
    if model.has_shared_expert:
        sizes |= {"expert_shared_feed_forward_length": of.shared_inner}
    if model.mixes == "delta":
        sizes |= {"full_attention_interval": of.attention_interval}
        sizes |= {"rope.dimension_count": of.head_size // 2}
        sizes |= _state_sizes(of, of.num_groups, of.state_size)
        if model.architecture != "qwen3next":
            sizes |= {"rope.dimension_sections": [of.head_size // 8, *[of.head_size // 16] * 2, 0]}
    elif model.mixes:
        heads = [0 if model.is_recurrent(layer) else of.kv_heads for layer in range(of.layers)]
        sizes |= {"attention.head_count_kv": heads}
        if model.mixes == "scan":
            sizes |= {"rope.scaling.finetuned": False, **_state_sizes(of, 1, of.scan_values)}
        else:
            sizes |= {"shortconv.l_cache": of.conv_span}
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


def _state_sizes(of: Sizes, num_groups: int, value_size: int) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": 4,
        "ssm.state_size": of.state_size,
        "ssm.group_count": num_groups,
        "ssm.time_step_rank": of.state_heads,
        "ssm.inner_size": of.state_heads * value_size,
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


def _add_tensors(writer: gguf.GGUFWriter, model: GgufModel) -> None:
    rng, of = np.random.default_rng(model.seed), model.sizes
    num_matrices = 0

    def matrix(name: str, rows: int, columns: int, std: float, num: int = 0) -> None:
        """Adds a matrix, or `num` matrices in one tensor."""
        nonlocal num_matrices
        kind = model.types[num_matrices % len(model.types)]
        own = model.expert_type if num else model.head_type if name == "output" else None
        kind = fitting(own or kind, columns)
        num_matrices += 1
        std *= (256 / of.hidden) ** 0.5
        values = random_rows(rng, rows * (num or 1), columns, kind, std)
        if name == ("token_embd" if model.is_tied else "output"):
            values[list(model.silent)] = 0
        values = values.reshape(num, rows, -1) if num else values
        writer.add_tensor(f"{name}.weight", values, raw_dtype=kind)
        if name.rpartition(".")[2] in model.biases:
            vector(f"{name}.bias", rows, 0, 0.3)

    def experts(name: str, rows: int, columns: int, std: float) -> None:
        matrix(f"{name}_exps", rows, columns, std, of.num_experts)

    def vector(name: str, size: int, mean: float, std: float = 0.1) -> None:
        writer.add_tensor(name, rng.normal(mean, std, size).astype(np.float32))

    def values(name: str, *shape: int, mean: float = 0, std: float = 0.3) -> None:
        writer.add_tensor(name, rng.normal(mean, std, shape).astype(np.float32))

    def recurrent(block: str) -> None:
        if model.mixes == "convolution":
            matrix(f"{block}.shortconv.in_proj", 3 * of.hidden, of.hidden, 0.1)
            matrix(f"{block}.shortconv.out_proj", of.hidden, of.hidden, 0.1)
            values(f"{block}.shortconv.conv.weight", of.hidden, of.conv_span, std=0.6)
            return
        is_scan = model.mixes == "scan"
        inner = of.state_heads * (of.scan_values if is_scan else of.state_size)
        joined = inner + 2 * (1 if is_scan else of.num_groups) * of.state_size
        values(f"{block}.ssm_conv1d.weight", joined, 4, std=0.5)
        values(f"{block}.ssm_dt.bias", of.state_heads, mean=-1)
        rates = -rng.uniform(0.3, 2, of.state_heads).astype(np.float32)
        matrix(f"{block}.ssm_out", of.hidden, inner, 0.1)
        if is_scan:
            matrix(f"{block}.ssm_in", inner + joined + of.state_heads, of.hidden, 0.1)
            writer.add_tensor(f"{block}.ssm_a", rates[:, None])
            values(f"{block}.ssm_conv1d.bias", joined)
            values(f"{block}.ssm_d", of.state_heads, 1, mean=1)
            values(f"{block}.ssm_norm.weight", 1, inner, mean=1)
            return
        writer.add_tensor(f"{block}.ssm_a", rates)
        values(f"{block}.ssm_norm.weight", of.state_size, mean=1)
        if model.is_joined and model.architecture == "qwen3next":
            matrix(f"{block}.ssm_in", joined + inner, of.hidden, 0.1)
        else:
            matrix(f"{block}.attn_qkv", joined, of.hidden, 0.1)
            matrix(f"{block}.attn_gate", inner, of.hidden, 0.1)
        if model.architecture == "qwen3next":
            matrix(f"{block}.ssm_ba", 2 * of.state_heads, of.hidden, 0.1)
        else:
            matrix(f"{block}.ssm_alpha", of.state_heads, of.hidden, 0.1)
            matrix(f"{block}.ssm_beta", of.state_heads, of.hidden, 0.1)

    width, kv_width = of.heads * of.head_size, of.kv_heads * of.head_size
    num_tokens = len(model.tokenizer["tokenizer.ggml.tokens"])
    matrix("token_embd", num_tokens, of.hidden, 0.3)
    for layer in range(of.layers):
        block = f"blk.{layer}"
        vector(f"{block}.attn_norm.weight", of.hidden, 1)
        is_oss = model.architecture == "gpt-oss"
        is_post = is_oss or model.mixes == "delta"
        vector(f"{block}.{'post_attention' if is_post else 'ffn'}_norm.weight", of.hidden, 1)
        if is_oss:
            vector(f"{block}.attn_sinks.weight", of.heads, 0, 1)
            vector(f"{block}.ffn_gate_inp.bias", of.num_experts, 0, 0.3)
            values(f"{block}.ffn_gate_exps.bias", of.num_experts, of.expert_inner)
            values(f"{block}.ffn_up_exps.bias", of.num_experts, of.expert_inner)
            values(f"{block}.ffn_down_exps.bias", of.num_experts, of.hidden)
        if model.is_recurrent(layer):
            recurrent(block)
        elif model.is_fused:
            matrix(f"{block}.attn_qkv", width + 2 * kv_width, of.hidden, 0.15)
            matrix(f"{block}.ffn_up", 2 * of.inner, of.hidden, 0.08)
        else:
            has_gates = model.mixes == "delta"
            matrix(f"{block}.attn_q", width * (2 if has_gates else 1), of.hidden, 0.15)
            matrix(f"{block}.attn_k", kv_width, of.hidden, 0.15)
            matrix(f"{block}.attn_v", kv_width, of.hidden, 0.15)
        if not model.is_recurrent(layer):
            matrix(f"{block}.attn_output", of.hidden, width, 0.1)
        if model.has_experts(layer):
            router = rng.normal(0, 0.1, (of.num_experts, of.hidden)).astype(np.float32)
            writer.add_tensor(f"{block}.ffn_gate_inp.weight", router)
            if model.is_joined:
                experts(f"{block}.ffn_gate_up", 2 * of.expert_inner, of.hidden, 0.08)
            else:
                experts(f"{block}.ffn_gate", of.expert_inner, of.hidden, 0.08)
                experts(f"{block}.ffn_up", of.expert_inner, of.hidden, 0.08)
            experts(f"{block}.ffn_down", of.hidden, of.expert_inner, 0.1)
            if model.architecture == "lfm2moe":
                vector(f"{block}.exp_probs_b.bias", of.num_experts, 0, 0.2)
            if model.has_shared_expert:
                matrix(f"{block}.ffn_gate_shexp", of.shared_inner, of.hidden, 0.08)
                matrix(f"{block}.ffn_up_shexp", of.shared_inner, of.hidden, 0.08)
                matrix(f"{block}.ffn_down_shexp", of.hidden, of.shared_inner, 0.1)
                if model.architecture.startswith("qwen"):
                    vector(f"{block}.ffn_gate_inp_shexp.weight", of.hidden, 0)
        else:
            if not model.is_fused:
                matrix(f"{block}.ffn_gate", of.inner, of.hidden, 0.08)
                matrix(f"{block}.ffn_up", of.inner, of.hidden, 0.08)
            matrix(f"{block}.ffn_down", of.hidden, of.inner, 0.1)
        if model.norms_heads and not model.is_recurrent(layer):
            vector(f"{block}.attn_q_norm.weight", of.head_size, 1.5)
            vector(f"{block}.attn_k_norm.weight", of.head_size, 1.5)
        if model.architecture == "olmoe":
            vector(f"{block}.attn_q_norm.weight", width, 1.5)
            vector(f"{block}.attn_k_norm.weight", kv_width, 1.5)
        if model.norms_outputs:
            vector(f"{block}.post_attention_norm.weight", of.hidden, 1)
            vector(f"{block}.post_ffw_norm.weight", of.hidden, 1)
    last = "token_embd" if model.mixes == "convolution" else "output"
    vector(f"{last}_norm.weight", of.hidden, 1)
    if not model.is_tied:
        matrix("output", num_tokens, of.hidden, 0.2)
    for name, numbers in model.extra.items():
        writer.add_tensor(name, numbers.astype(np.float32))


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
        numbers = rng.normal(0, std, (rows, columns)).astype(np.float32)
        encoded: NDArray[Any] = gguf.quantize(numbers, kind)
        return encoded
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, columns // size, num_bytes), np.uint8)
    if kind is Type.MXFP4:  # the scales are powers of two
        blocks[..., 0] = 127 + np.round(np.log2(std / 5)) + rng.integers(0, 2, blocks.shape[:2])
        return blocks.reshape(rows, -1)
    scale = np.full((rows, columns // size, 1), std / 50)
    for factor in (1.0, None):
        if factor is None:
            factor = std / gguf.dequantize(blocks[:4096].reshape(min(rows, 4096), -1), kind).std()
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
