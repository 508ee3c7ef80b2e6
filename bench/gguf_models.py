"""Writes GGUF files with random weights, of the shapes that `bench.models` and
`bench.encoder_models` make: what llama.cpp is measured with.

    python -m bench.gguf_models SHAPE TYPE FILE
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bench.encoder_models import CLS, PAD, SEP, UNKNOWN, vocabulary
from bench.random_models.encoder_graph import ENCODER_SHAPES, EncoderShape
from bench.random_models.shapes import SHAPES, Shape
from fastovms.server_config import DEMO_MODEL

TYPES: Final = {"f16": Type.F16, "q8_0": Type.Q8_0, "q4_0": Type.Q4_0}
"""Of the matrices."""

SUBWORDS: Final = "\u2581"
"""Begins a word in llama.cpp's WordPiece vocabularies, where BERT marks the other pieces."""

_SPREAD: Final = {Type.F16: 1.0, Type.Q8_0: 74.0, Type.Q4_0: 4.6, Type.Q6_K: 18.5 * 74}
"""The standard deviation of random blocks with a scale of 1."""

_SCALE_OFFSET: Final = {Type.Q8_0: 0, Type.Q4_0: 0, Type.Q6_K: 208}
"""Where a block has its f16 scale."""


def write_decoder(shape: Shape, kind: Type, path: Path, tokenizer: Path, seed: int = 0) -> None:
    """Writes a model of a shape's kind with the vocabulary of a byte-level `tokenizer.json`: of
    Llama's, or, with experts or convolutions, of Qwen3-MoE's or LFM 2's.

    Ids that the tokenizer does not know are never generated, nor are special tokens and parts of
    characters: every token is a text, as a stream shows it. The head is as `llama-quantize` writes
    it beside Q4_0: Q6_K, or Q8_0 where rows are no whole blocks of that.

    Raises:
        FileNotFoundError: there is no such tokenizer.
    """
    words = tokenizer.read_text()
    architecture = "qwen3moe" if shape.num_experts else "lfm2" if shape.convolutions else "llama"
    file = _File(path, architecture, shape.vocab_size, seed)
    writer, size = file.writer, shape.hidden_size
    writer.add_context_length(shape.max_position_embeddings)
    writer.add_embedding_length(size)
    writer.add_block_count(shape.num_hidden_layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_attention_heads)
    kv_heads = [
        0 if layer in shape.convolutions else shape.num_key_value_heads
        for layer in range(shape.num_hidden_layers)
    ]
    writer.add_head_count_kv(kv_heads if shape.convolutions else shape.num_key_value_heads)
    if shape.num_experts:
        writer.add_key_length(shape.head_dim)
        writer.add_value_length(shape.head_dim)
        writer.add_expert_count(shape.num_experts)
        writer.add_expert_used_count(shape.num_experts_per_tok)
        writer.add_expert_feed_forward_length(shape.intermediate_size)
    if shape.convolutions:
        writer.add_shortconv_l_cache(shape.conv_tokens)
    writer.add_layer_norm_rms_eps(shape.rms_norm_eps)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_rope_dimension_count(shape.head_dim)
    silent = _add_byte_pairs(writer, words, shape.vocab_size)

    head_kind = kind
    if kind == Type.Q4_0:
        head_kind = Type.Q8_0 if size % gguf.GGML_QUANT_SIZES[Type.Q6_K][0] else Type.Q6_K
    head_name = "token_embd" if shape.tie_word_embeddings else "output"
    if not shape.tie_word_embeddings:
        file.add_matrix("token_embd", shape.vocab_size, size, kind)
    file.add_matrix(head_name, shape.vocab_size, size, head_kind, silent)
    file.add_norm("token_embd_norm" if shape.convolutions else "output_norm", size)
    heads = shape.num_attention_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    for layer in range(shape.num_hidden_layers):
        block = f"blk.{layer}"
        file.add_norm(f"{block}.attn_norm", size)
        file.add_norm(f"{block}.ffn_norm", size)
        if layer in shape.convolutions:
            file.add_matrix(f"{block}.shortconv.in_proj", 3 * size, size, kind)
            file.add_matrix(f"{block}.shortconv.conv", size, shape.conv_tokens, Type.F32)
            file.add_matrix(f"{block}.shortconv.out_proj", size, size, kind)
        else:
            file.add_matrix(f"{block}.attn_q", heads, size, kind)
            file.add_matrix(f"{block}.attn_k", keys, size, kind)
            file.add_matrix(f"{block}.attn_v", keys, size, kind)
            file.add_matrix(f"{block}.attn_output", size, heads, kind)
            if architecture != "llama":
                file.add_norm(f"{block}.attn_q_norm", shape.head_dim)
                file.add_norm(f"{block}.attn_k_norm", shape.head_dim)
        inner, num, ending = shape.intermediate_size, shape.num_experts, ""
        if num:
            ending = "_exps"
            file.add_matrix(f"{block}.ffn_gate_inp", num, size, Type.F32)
        file.add_matrix(f"{block}.ffn_gate{ending}", inner, size, kind, num=num)
        file.add_matrix(f"{block}.ffn_up{ending}", inner, size, kind, num=num)
        file.add_matrix(f"{block}.ffn_down{ending}", size, inner, kind, num=num)
    file.close()


def write_encoder(shape: EncoderShape, kind: Type, path: Path, seed: int = 0) -> None:
    """Writes a BERT-shaped model that gives the first token's vector, with the vocabulary of
    `bench.encoder_models`."""
    file = _File(path, "bert", shape.vocab_size, seed)
    writer, size = file.writer, shape.hidden_size
    writer.add_context_length(shape.max_position_embeddings)
    writer.add_embedding_length(size)
    writer.add_block_count(shape.num_hidden_layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_attention_heads)
    writer.add_layer_norm_eps(shape.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.CLS)
    _add_word_pieces(writer, shape)

    file.add_matrix("token_embd", shape.vocab_size, size, kind)
    file.add_matrix("position_embd", shape.max_position_embeddings, size, Type.F16)
    file.add_matrix("token_types", shape.type_vocab_size, size, Type.F32)
    file.add_norm("token_embd_norm", size, with_bias=True)
    for layer in range(shape.num_hidden_layers):
        block = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            file.add_matrix(f"{block}.{name}", size, size, kind)
            file.add_bias(f"{block}.{name}", size)
        file.add_norm(f"{block}.attn_output_norm", size, with_bias=True)
        file.add_matrix(f"{block}.ffn_up", shape.intermediate_size, size, kind)
        file.add_bias(f"{block}.ffn_up", shape.intermediate_size)
        file.add_matrix(f"{block}.ffn_down", size, shape.intermediate_size, kind)
        file.add_bias(f"{block}.ffn_down", size)
        file.add_norm(f"{block}.layer_output_norm", size, with_bias=True)
    file.close()


class _File:
    """A file that is written."""

    def __init__(self, path: Path, architecture: str, vocab_size: int, seed: int) -> None:
        self.writer = gguf.GGUFWriter(path, architecture)
        self.writer.add_vocab_size(vocab_size)
        self._rng = np.random.default_rng(seed)

    def add_norm(self, name: str, size: int, *, with_bias: bool = False) -> None:
        self.writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))
        if with_bias:
            self.add_bias(name, size)

    def add_bias(self, name: str, size: int) -> None:
        self.writer.add_tensor(f"{name}.bias", np.zeros(size, np.float32))

    def add_matrix(
        self,
        name: str,
        rows: int,
        columns: int,
        kind: Type,
        silent: Collection[int] = (),
        num: int = 0,
    ) -> None:
        """Adds random weights whose products with a vector of ones spread by 1.

        Args:
            silent: rows of zeros.
            num: of matrices, which are one tensor; 0 = one matrix.
        """
        name = f"{name}.weight"
        shape = (num, rows, -1) if num else (rows, -1)
        rows *= num or 1
        if kind in (Type.F32, Type.F16):
            numbers = self._rng.standard_normal((rows, columns), np.float32) / columns**0.5
            numbers[list(silent)] = 0
            numbers = numbers.astype(np.float16 if kind == Type.F16 else np.float32)
            self.writer.add_tensor(name, numbers.reshape(shape))
            return
        block_size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        blocks = self._random_blocks(rows, columns // block_size, num_bytes)
        scale = np.float16(1 / (_SPREAD[kind] * columns**0.5))
        offset = _SCALE_OFFSET[kind]
        blocks[:, :, offset : offset + 2] = np.frombuffer(scale.tobytes(), np.uint8)
        blocks[list(silent)] = 0
        self.writer.add_tensor(name, blocks.reshape(shape), raw_dtype=kind)

    def _random_blocks(self, rows: int, num_blocks: int, num_bytes: int) -> NDArray[np.uint8]:
        return self._rng.integers(0, 256, (rows, num_blocks, num_bytes), dtype=np.uint8)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def _add_byte_pairs(writer: gguf.GGUFWriter, words: str, vocab_size: int) -> list[int]:
    """Adds a vocabulary, padded to the model's, and returns the ids that are no text of their
    own."""
    fields: dict[str, Any] = json.loads(words)
    ids: dict[str, int] = dict(fields["model"]["vocab"])
    added = fields["added_tokens"]
    ids |= {token["content"]: token["id"] for token in added}
    special = {token["id"] for token in added if token["special"]}
    known = {token_id: token for token, token_id in ids.items()}
    size = max(vocab_size, *(token_id + 1 for token_id in known))
    if size > vocab_size:
        raise ValueError(f"the tokenizer has {size} tokens, the shape {vocab_size}")

    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([known.get(i, f"[PAD{i}]") for i in range(size)])
    types = [gguf.TokenType.NORMAL if i in known else gguf.TokenType.UNUSED for i in range(size)]
    for token_id in special:
        types[token_id] = gguf.TokenType.CONTROL
    writer.add_token_types(types)
    merges = fields["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    end = min(special, default=0)
    writer.add_eos_token_id(end)
    writer.add_bos_token_id(end)
    writer.add_add_bos_token(False)

    texts = Tokenizer.from_str(words).decode_batch([[i] for i in range(size)])
    return [
        i
        for i, text in enumerate(texts)
        if i in special or i not in known or not text or "\N{REPLACEMENT CHARACTER}" in text
    ]


def _add_word_pieces(writer: gguf.GGUFWriter, shape: EncoderShape) -> None:
    tokens = vocabulary(shape.vocab_size)
    is_special = [len(token) > 1 and token[0] == "[" and token[-1] == "]" for token in tokens]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")  # as of BERT without casing, which BGE's is
    writer.add_token_list(
        [
            token if special else token[2:] if token.startswith("##") else SUBWORDS + token
            for token, special in zip(tokens, is_special, strict=True)
        ]
    )
    kinds = (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL)
    writer.add_token_types([kinds[special] for special in is_special])
    writer.add_token_type_count(shape.type_vocab_size)
    writer.add_bos_token_id(CLS)
    writer.add_eos_token_id(SEP)
    writer.add_sep_token_id(SEP)
    writer.add_unk_token_id(UNKNOWN)
    writer.add_pad_token_id(PAD)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m bench.gguf_models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    encoders = {name: shape for name, shape in ENCODER_SHAPES.items() if name not in SHAPES}
    parser.add_argument("name", choices=[*SHAPES, *encoders], metavar="SHAPE", help="its name")
    parser.add_argument("type", choices=TYPES, metavar="TYPE", help="of matrices: %(choices)s")
    parser.add_argument("file", type=Path, metavar="FILE", help="where to write")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        default=DEMO_MODEL / "tokenizer.json",
        metavar="FILE",
        help="byte-level tokenizer.json of a model that writes (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: %(default)s)")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    try:
        if options.name in encoders:
            write_encoder(encoders[options.name], TYPES[options.type], options.file, options.seed)
        else:
            write_decoder(
                SHAPES[options.name],
                TYPES[options.type],
                options.file,
                options.tokenizer,
                options.seed,
            )
    except FileNotFoundError as error:
        parser.error(f"no such file or directory: {error.filename}")
    except ValueError as error:
        parser.error(f"--tokenizer: {error}")
    size = options.file.stat().st_size / 1e6
    print(f"{options.file}: {size:.0f} MB in {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
