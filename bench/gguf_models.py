"""Writes GGUF files with random weights, of the shapes that `bench.models` and
`bench.encoder_models` make: what llama.cpp is measured with.

    python -m bench.gguf_models SHAPE TYPE FILE
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bench.encoder_models import CLS, PAD, SEP, UNKNOWN, vocabulary
from bench.random_models.encoder_graph import ENCODER_SHAPES, EncoderShape
from bench.random_models.gguf_decoder import GgufModel, Sizes, fitting, write_model
from bench.random_models.shapes import SHAPES, Shape
from fastovms.server_config import DEMO_MODEL

TYPES: Final = {"f16": Type.F16, "q8_0": Type.Q8_0, "q4_0": Type.Q4_0}
"""Of the matrices."""

SUBWORDS: Final = "\u2581"
"""Begins a word in llama.cpp's WordPiece vocabularies, where BERT marks the other pieces."""

_DELTA: Final = Sizes(
    1024, 3072, 128, 8, 2, 16, attention_interval=4, num_groups=8, state_heads=16, state_size=128
)

_SPREAD: Final = {Type.F16: 1.0, Type.Q8_0: 74.0, Type.Q4_0: 4.6, Type.Q6_K: 18.5 * 74}
"""The standard deviation of random blocks with a scale of 1."""

_SCALE_OFFSET: Final = {Type.Q8_0: 0, Type.Q4_0: 0, Type.Q6_K: 208}
"""Where a block has its f16 scale."""


MIXTURES_AND_HYBRIDS: Final = {
    "qwen3-moe-128": GgufModel(
        "qwen3moe",
        sizes=Sizes(1024, 3072, 64, 16, 4, 12, num_experts=128, num_chosen=8, expert_inner=384),
    ),  # the ratios of Qwen3-30B-A3B
    "gpt-oss": GgufModel(
        "gpt-oss",
        biases=("attn_q", "attn_k", "attn_v", "attn_output"),
        settings={"attention.sliding_window": 128},
        expert_type=Type.MXFP4,
        sizes=Sizes(1024, 1024, 64, 16, 2, 12, num_experts=32, num_chosen=4, expert_inner=1024),
    ),  # of gpt-oss-20b
    "qwen35": GgufModel("qwen35", is_tied=True, sizes=_DELTA),  # of Qwen3.5-0.8B
    "qwen35moe": GgufModel(
        "qwen35moe",
        sizes=replace(_DELTA, num_experts=64, num_chosen=8, expert_inner=256, shared_inner=256),
    ),  # of Qwen3.5-35B-A3B
    "granite-4-h": GgufModel(
        "granitehybrid",
        settings={"expert_count": 32},
        is_tied=True,
        sizes=Sizes(
            1024,
            512,
            64,
            16,
            4,
            16,
            num_experts=32,
            num_chosen=6,
            expert_inner=512,
            shared_inner=1024,
            attention=(5, 13),
            state_heads=32,
            state_size=128,
            scan_values=64,
        ),
    ),  # of Granite 4.0 H Tiny
}
"""Models that `bench.models` does not make, with the ratios of well-known ones."""

_VOCABULARY: Final = 49_152


def write_decoder(name: str, kind: Type, path: Path, tokenizer: Path, seed: int = 0) -> None:
    """Writes one of `MIXTURES_AND_HYBRIDS`, or a model of a shape's kind: Llama's, or, with experts
    or convolutions, Qwen3-MoE's or LFM 2's, with the vocabulary of a byte-level `tokenizer.json`.

    Ids that the tokenizer does not know are never generated, nor are special tokens and parts of
    characters: every token is a text, as a stream shows it. The head is as `llama-quantize` writes
    it beside Q4_0: Q6_K, or Q8_0 where rows are no whole blocks of that.

    Raises:
        FileNotFoundError: there is no such tokenizer.
    """
    model = MIXTURES_AND_HYBRIDS.get(name) or _model_of(SHAPES[name])
    vocab_size = SHAPES[name].vocab_size if name in SHAPES else _VOCABULARY
    metadata, silent = _byte_pairs(tokenizer.read_text(), vocab_size)
    head = fitting(Type.Q6_K, model.sizes.hidden) if kind == Type.Q4_0 else kind
    sizes = replace(model.sizes, context_length=8192)
    write_model(
        path,
        replace(
            model,
            types=(kind,),
            head_type=head,
            silent=silent,
            tokenizer=metadata,
            sizes=sizes,
            seed=seed,
        ),
    )


def _model_of(shape: Shape) -> GgufModel:
    architecture = "qwen3moe" if shape.num_experts else "lfm2" if shape.convolutions else "llama"
    return GgufModel(
        architecture,
        settings={"rope.freq_base": shape.rope_theta},
        is_tied=shape.tie_word_embeddings,
        sizes=Sizes(
            shape.hidden_size,
            shape.intermediate_size,
            shape.head_dim,
            shape.num_attention_heads,
            shape.num_key_value_heads,
            shape.num_hidden_layers,
            num_experts=shape.num_experts,
            num_chosen=shape.num_experts_per_tok,
            expert_inner=shape.intermediate_size,
            attention=tuple(set(range(shape.num_hidden_layers)).difference(shape.convolutions)),
            conv_span=shape.conv_tokens,
        ),
    )


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
    ) -> None:
        """Adds random weights whose products with a vector of ones spread by 1."""
        name = f"{name}.weight"
        if kind in (Type.F32, Type.F16):
            numbers = self._rng.standard_normal((rows, columns), np.float32) / columns**0.5
            numbers = numbers.astype(np.float16 if kind == Type.F16 else np.float32)
            self.writer.add_tensor(name, numbers.reshape(rows, -1))
            return
        block_size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        blocks = self._random_blocks(rows, columns // block_size, num_bytes)
        scale = np.float16(1 / (_SPREAD[kind] * columns**0.5))
        offset = _SCALE_OFFSET[kind]
        blocks[:, :, offset : offset + 2] = np.frombuffer(scale.tobytes(), np.uint8)
        self.writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=kind)

    def _random_blocks(self, rows: int, num_blocks: int, num_bytes: int) -> NDArray[np.uint8]:
        return self._rng.integers(0, 256, (rows, num_blocks, num_bytes), dtype=np.uint8)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def _byte_pairs(words: str, vocab_size: int) -> tuple[dict[str, Any], list[int]]:
    """Returns the metadata of a vocabulary, padded to the model's, and the ids that are no text of
    their own."""
    fields: dict[str, Any] = json.loads(words)
    ids: dict[str, int] = dict(fields["model"]["vocab"])
    added = fields["added_tokens"]
    ids |= {token["content"]: token["id"] for token in added}
    special = {token["id"] for token in added if token["special"]}
    known = {token_id: token for token, token_id in ids.items()}
    size = max(vocab_size, *(token_id + 1 for token_id in known))
    if size > vocab_size:
        raise ValueError(f"the tokenizer has {size} tokens, the shape {vocab_size}")

    types = [gguf.TokenType.NORMAL if i in known else gguf.TokenType.UNUSED for i in range(size)]
    for token_id in special:
        types[token_id] = gguf.TokenType.CONTROL
    merges = fields["model"]["merges"]
    end = min(special, default=0)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [known.get(i, f"[PAD{i}]") for i in range(size)],
        "tokenizer.ggml.token_type": [int(each) for each in types],
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in merges],
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
    }
    texts = Tokenizer.from_str(words).decode_batch([[i] for i in range(size)])
    return metadata, [
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
    parser.add_argument(
        "name",
        choices=[*SHAPES, *MIXTURES_AND_HYBRIDS, *encoders],
        metavar="SHAPE",
        help="its name",
    )
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
                options.name,
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
