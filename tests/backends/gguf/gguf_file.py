"""Writes tiny GGUF models: random weights, a byte-level tokenizer."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9
F16, Q8_0 = 1, 8

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 64, 160, 4, 2, 2


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key: str, value: int | float | str | list[str] | list[int]) -> bytes:
    return string(key) + _typed(value)


def _typed(value: object) -> bytes:
    match value:
        case int():
            return struct.pack("<II", UINT32, value)
        case float():
            return struct.pack("<If", FLOAT32, value)
        case str():
            return struct.pack("<I", STRING) + string(value)
        case [str(), *_]:
            return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(string, value))
        case list():
            return struct.pack(f"<IIQ{len(value)}i", ARRAY, INT32, len(value), *value)
    raise TypeError(type(value))


def head(entries: list[bytes], num_tensors: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, len(entries)) + b"".join(entries)


def byte_tokens() -> list[str]:
    """GPT-2's characters for bytes, in the order of the bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + n) for n in range(256))
    return [chr(byte) if byte in shown else next(others) for byte in range(256)]


TOKENS = ["<|end_of_text|>", "<|begin_of_text|>", "<|im_end|>"]
TOKENS += [*byte_tokens(), "he", "ll", "hell", "\u0120t"]
MERGES = ["h e", "l l", "he ll", "\u0120 t"]


def metadata(architecture: str, file_type: int) -> dict[str, int | float | str | list]:
    return {
        "general.architecture": architecture,
        "general.file_type": file_type,
        f"{architecture}.block_count": LAYERS,
        f"{architecture}.context_length": 512,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": INNER,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(TOKENS) - 3),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }


def quantized(values: NDArray[np.float64]) -> bytes:
    """Q8_0: blocks of 32 numbers, an f16 scale and an int8 each."""
    blocks = values.reshape(-1, 32)
    scales = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
    numbers = np.round(blocks / scales.astype(np.float64)).astype(np.int8)
    return np.concatenate([scales.view(np.uint8), numbers.view(np.uint8)], axis=1).tobytes()


def write_gguf(
    path: Path,
    architecture: str = "llama",
    *,
    is_quantized: bool = True,
    is_tied: bool = False,
    has_bias: bool = False,
) -> None:
    rng = np.random.default_rng(0)
    tensors: list[tuple[str, tuple[int, ...], int, bytes]] = []

    def add(name: str, *shape: int, std: float) -> None:
        values = rng.normal(0, std, shape)
        data = quantized(values) if is_quantized else values.astype(np.float16).tobytes()
        tensors.append((name, shape, Q8_0 if is_quantized else F16, data))

    def add_vector(name: str, size: int, mean: float) -> None:
        tensors.append((name, (size,), 0, rng.normal(mean, 0.1, size).astype("f").tobytes()))

    kv_size = HIDDEN // HEADS * KV_HEADS
    add("token_embd.weight", len(TOKENS), HIDDEN, std=0.3)
    for layer in range(LAYERS):
        prefix = f"blk.{layer}"
        add_vector(f"{prefix}.attn_norm.weight", HIDDEN, 1)
        add_vector(f"{prefix}.ffn_norm.weight", HIDDEN, 1)
        for name, rows in {"q": HIDDEN, "k": kv_size, "v": kv_size}.items():
            add(f"{prefix}.attn_{name}.weight", rows, HIDDEN, std=0.2)
            if has_bias:
                add_vector(f"{prefix}.attn_{name}.bias", rows, 0)
        add(f"{prefix}.attn_output.weight", HIDDEN, HIDDEN, std=0.1)
        add(f"{prefix}.ffn_gate.weight", INNER, HIDDEN, std=0.15)
        add(f"{prefix}.ffn_up.weight", INNER, HIDDEN, std=0.15)
        add(f"{prefix}.ffn_down.weight", HIDDEN, INNER, std=0.1)
    add_vector("output_norm.weight", HIDDEN, 1)
    if not is_tied:
        add("output.weight", len(TOKENS), HIDDEN, std=0.5)

    infos, data = b"", b""
    for name, shape, kind, values in tensors:
        infos += string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        infos += struct.pack("<IQ", kind, len(data))
        data += values + bytes(-len(values) % 32)
    file_type = 7 if is_quantized else 1
    entries = [entry(key, value) for key, value in metadata(architecture, file_type).items()]
    start = head(entries, len(tensors)) + infos
    path.write_bytes(start + bytes(-len(start) % 32) + data)
