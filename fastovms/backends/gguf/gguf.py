"""GGUF files as model directories.

OpenVINO GenAI reads the tensors and builds graph and tokenizer (llama, qwen2 and qwen3 with byte
pair encoding); what it leaves out is written from the file's metadata. It happens once a file: the
result is kept in the cache.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import openvino as ov

from fastovms.disk_cache import DiskCache, file_identity, key_of
from fastovms.errors import ConfigurationError
from fastovms.gguf.file_reader import Value, read_gguf

logger = logging.getLogger(__name__)

_CONVERTER: Final = "fastovms.backends.gguf.gguf_converter"
_FORMAT: Final = 1
"""Of what is made of a file; a new one makes what is cached old."""

_ENDS: Final = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>"}
    | {"<end_of_turn>", "<EOT>", "<\uff5cend\u2581of\u2581sentence\uff5c>"}
)
"""Tokens that end an answer whatever the file says of them, as in llama.cpp."""

_SPECIAL_KINDS: Final = (3, 4)
"""Of `tokenizer.ggml.token_type`: control tokens, and what users added."""


def find_gguf(path: Path) -> Path | None:
    """The GGUF file that `path` means: itself, or the only one in a directory without an OpenVINO
    model. None: it means something else.

    Raises:
        ConfigurationError: there are several.
    """
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    if (path / "openvino_model.xml").exists():
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ConfigurationError(f"{path} has several GGUF files: name one of {names}")
    return files[0] if files else None


def model_directory(path: Path, cache: DiskCache, scratch: Path) -> Path:
    """The directory of the model that `path` means: itself, or what is made of a GGUF file, which
    takes seconds the first time.

    Args:
        scratch: where to make it when it cannot be kept in the cache.

    Raises:
        ConfigurationError: the file is broken, or of a kind that OpenVINO does not read.
    """
    file = find_gguf(path)
    if file is None:
        return path
    metadata = read_gguf(file).metadata
    key = key_of(_FORMAT, ov.get_version(), file_identity([file]))
    directory = cache.find("gguf", key) or cache.put(
        "gguf", key, lambda target: _convert(file, metadata, target)
    )
    if directory is None:
        directory = Path(tempfile.mkdtemp(dir=scratch))
        _convert(file, metadata, directory)
    return directory


def _convert(path: Path, metadata: Mapping[str, Value], target: Path) -> None:
    logger.info("converting %s", path)
    _run_converter(path, target)
    for name, content in _further_files(path, metadata).items():
        (target / name).write_text(content, encoding="utf-8")


def _run_converter(path: Path, target: Path) -> None:
    """In a process of its own: a broken file may crash it, and its memory goes with it."""
    link = target / "model.gguf"  # what is made of it will stand beside it
    link.symlink_to(path.resolve())
    try:
        child = subprocess.run(
            [sys.executable, "-m", _CONVERTER, str(link)],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    finally:
        link.unlink()
    if child.returncode < 0:
        raise ConfigurationError(
            f"OpenVINO cannot read {path}: it crashed (signal {-child.returncode})"
        )
    if child.returncode:
        lines = [line.strip() for line in child.stderr.splitlines() if line.strip()]
        raise ConfigurationError(f"OpenVINO cannot read {path}: {' '.join(lines[-1:])}")


def _further_files(path: Path, metadata: Mapping[str, Value]) -> dict[str, str]:
    tokens = _strings(metadata.get("tokenizer.ggml.tokens"))
    if not tokens:
        raise ConfigurationError(f"{path} holds no tokenizer")
    files = {
        "config.json": json.dumps(_config(metadata, tokens)),
        "tokenizer_config.json": json.dumps(_tokenizer_config(metadata, tokens)),
    }
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        files["chat_template.jinja"] = template
    if metadata.get("tokenizer.ggml.model") == "gpt2":
        files["tokenizer.json"] = json.dumps(_byte_pair_tokenizer(metadata, tokens))
    return files


def _config(metadata: Mapping[str, Value], tokens: list[str]) -> dict[str, Any]:
    architecture = metadata.get("general.architecture")
    special = _special_ids(metadata)
    ends = {metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")}
    ends |= {i for i, token in enumerate(tokens) if token in _ENDS and i in special}
    return {
        "model_type": architecture,
        "vocab_size": len(tokens),
        "max_position_embeddings": metadata.get(f"{architecture}.context_length"),
        "sliding_window": metadata.get(f"{architecture}.attention.sliding_window"),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": sorted(i for i in ends if isinstance(i, int) and 0 <= i < len(tokens)),
    }


def _tokenizer_config(metadata: Mapping[str, Value], tokens: list[str]) -> dict[str, Any]:
    names = {}
    for name in ("bos", "eos", "pad", "unknown"):
        token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token_id, int) and 0 <= token_id < len(tokens):
            names[f"{name.removesuffix('nown')}_token"] = tokens[token_id]
    return names


def _byte_pair_tokenizer(metadata: Mapping[str, Value], tokens: list[str]) -> dict[str, Any]:
    """As a Hugging Face tokenizer.json, from which grammars learn what each token is. How it
    splits texts into words before it joins bytes is not that of every model: the tokenizer that
    texts go through is another one."""
    special = _special_ids(metadata)
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": i,
                "content": tokens[i],
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for i in sorted(special)
            if i < len(tokens)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": _strings(metadata.get("tokenizer.ggml.merges")),
        },
    }


def _special_ids(metadata: Mapping[str, Value]) -> set[int]:
    kinds = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, list):
        return set()
    return {i for i, kind in enumerate(kinds) if kind in _SPECIAL_KINDS}


def _strings(value: Value | None) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
