"""Writes tiny adapters (LoRA) in PEFT's format, and models with merged adapters."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.random_models.shapes import SHAPES, Shape

Array = NDArray[Any]

ALL_MODULES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
SOME_MODULES = ("self_attn.q_proj", "self_attn.v_proj")
"""The target modules that PEFT chooses for Llama."""

BAD_NAMES = ("x" * 257, "a\tb", "a\nb", "a\x7f", "a\0", "\u202e", "\u2028", "\ud800", " ", "\u3000")
"""Names of adapters that flags and the API refuse."""

_DTYPES = {"float32": "F32", "float16": "F16", "uint16": "BF16"}


def write_safetensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Writes a safetensors file. Arrays of uint16 contain bfloat16 bits."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in tensors.items():
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    data = b"".join(array.tobytes() for array in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def module_sizes(shape: Shape) -> dict[str, tuple[int, int]]:
    """Returns the rows and columns of the matrices of a layer."""
    size, inner = shape.hidden_size, shape.intermediate_size
    width = shape.num_attention_heads * shape.head_dim
    kv_width = shape.num_key_value_heads * shape.head_dim
    sizes = [(width, size), (kv_width, size), (kv_width, size), (size, width)]
    sizes += [(inner, size), (inner, size), (size, inner)]
    return dict(zip(ALL_MODULES, sizes, strict=True))


def random_tensors(
    shape: Shape, *, rank: int, seed: int, modules: Sequence[str] = ALL_MODULES, std: float = 0.2
) -> dict[str, Array]:
    """Returns the tensors of an adapter that changes most texts, by their names in PEFT's files."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, Array] = {}
    for layer in range(shape.num_hidden_layers):
        for module in modules:
            rows, columns = module_sizes(shape)[module]
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = rng.normal(0, std, (rank, columns))
            tensors[f"{name}.lora_B.weight"] = rng.normal(0, std, (rows, rank))
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def write_adapter(
    directory: Path,
    tensors: Mapping[str, Array],
    *,
    rank: int,
    alpha: float = 8.0,
    **config: object,
) -> Path:
    """Writes an adapter with further members of its configuration, and returns its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    members = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", **config}
    (directory / "adapter_config.json").write_text(json.dumps(members))
    write_safetensors(directory / "adapter_model.safetensors", tensors)
    return directory


def write_random_adapter(
    directory: Path,
    shape: Shape = SHAPES["tiny"],
    *,
    rank: int = 4,
    seed: int = 0,
    modules: Sequence[str] = ALL_MODULES,
) -> Path:
    """Writes an adapter for a model of a shape, and returns its directory."""
    tensors = random_tensors(shape, rank=rank, seed=seed, modules=modules)
    return write_adapter(directory, tensors, rank=rank)
