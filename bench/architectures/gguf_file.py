"""Writes the GGUF file of a small model as llama.cpp's converter does, with the names of `gguf`.

Weights are not quantized, so that a difference can only come from the metadata or the reader.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

Config = Mapping[str, Any]
Array = NDArray[np.float32]

_ARCHITECTURES: Final = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}
"""The GGUF architecture by `model_type` of config.json. Rows of Llama's queries and keys are
permuted."""

_UNTIED: Final = {"lm_head.weight": "output.weight"}
"""Gemma's tensors that llama.cpp does not read, because Gemma's embeddings are always tied to the
output."""


def can_be_written(config: Config) -> bool:
    """Returns whether GGUF can describe the model: no dynamic scaling, and no sliding windows in
    some of the layers except Gemma's."""
    scaling = config.get("rope_scaling") or {}
    has_windows = config["model_type"] == "qwen2" and config.get("use_sliding_window")
    is_known = config["model_type"] in _ARCHITECTURES
    return is_known and scaling.get("rope_type") != "dynamic" and not has_windows


def write_gguf(original: Path, path: Path) -> None:
    """Writes the GGUF file of a model that transformers has saved in `original`."""
    config = json.loads((original / "config.json").read_text())
    kind = _ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    _add_settings(writer, config)
    _add_tokens(writer, config["vocab_size"])
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for name, values in _read_safetensors(original / "model.safetensors").items():
        known = names.get_name(name, try_suffixes=(".weight", ".bias")) or _UNTIED[name]
        writer.add_tensor(known, _as_written(name, values, config, kind))
    for name, values in _factors(config).items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_settings(writer: gguf.GGUFWriter, config: Config) -> None:
    head_size = _head_size(config)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(config["rope_theta"])
    if config.get("sliding_window") and config["model_type"] != "qwen2":
        writer.add_sliding_window(config["sliding_window"])
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window_pattern(
            [kind != "full_attention" for kind in config["layer_types"]]
        )
        writer.add_float32("gemma3.rope.freq_base_swa", config["rope_local_base_freq"])
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    if kind == "longrope":
        original = config["original_max_position_embeddings"]
        growth = config["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(growth) / math.log(original)))


def _add_tokens(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    """Adds placeholder tokens, because only token ids are compared."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}  # as in GPT-2
    tokens = [chr(n if n in shown else 256 + n) for n in range(256)] + ["ab"]
    tokens += [f"<{n}>" for n in range(len(tokens), vocab_size)]
    writer.add_token_list(tokens)
    special = [gguf.TokenType.CONTROL] * 3
    writer.add_token_types([*special, *[gguf.TokenType.NORMAL] * (vocab_size - 3)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _as_written(name: str, values: Array, config: Config, kind: gguf.MODEL_ARCH) -> Array:
    if kind is gguf.MODEL_ARCH.LLAMA and name.endswith(("q_proj.weight", "k_proj.weight")):
        return (
            values.reshape(-1, 2, _head_size(config) // 2, values.shape[1])
            .swapaxes(1, 2)
            .reshape(values.shape)
        )
    if kind in (gguf.MODEL_ARCH.GEMMA, gguf.MODEL_ARCH.GEMMA3) and name.endswith("norm.weight"):
        return values + 1
    return values


def _factors(config: Config) -> dict[str, Array]:
    """Returns the tensors that scale the rotary frequencies."""
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "longrope":
        return {
            f"rope_factors_{length}.weight": np.array(scaling[f"{length}_factor"])
            for length in ("long", "short")
        }
    if kind != "llama3":
        return {}
    size = _head_size(config)
    wavelengths = 2 * math.pi * config["rope_theta"] ** (np.arange(0, size, 2) / size)
    rotations = scaling["original_max_position_embeddings"] / wavelengths
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((rotations - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": 1 / ((1 - smooth) / scaling["factor"] + smooth)}


def _head_size(config: Config) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _read_safetensors(path: Path) -> dict[str, Array]:
    """Reads the f32 tensors of a safetensors file: a length, a JSON header, and the numbers."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    head, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    head.pop("__metadata__", None)
    return {
        name: np.frombuffer(data[slice(*info["data_offsets"])], np.float32).reshape(info["shape"])
        for name, info in head.items()
    }
