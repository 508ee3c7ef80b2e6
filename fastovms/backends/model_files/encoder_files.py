"""Reads what the files of an encoder say of it: its vocabulary, and how long a text may be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fastovms.backends.model_files.json_files import first_integer, read_json, read_optional
from fastovms.backends.model_files.model_info import LENGTH_KEYS, UNLIMITED
from fastovms.backends.model_files.required_files import check_encoder_files, weights_file
from fastovms.errors import ConfigurationError
from fastovms.params import ModelInfo

_SHIFTED: Final = ("roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl")
"""The types of models whose positions begin behind the id of the padding."""

_LONGEST: Final = 10**6
"""Lengths from which on a tokenizer's limit stands for none."""


def read_encoder_info(model_dir: Path, *, name: str) -> ModelInfo:
    """Returns what an encoder is called and what it can do.

    Raises:
        ConfigurationError: a file is missing, broken, or lacks what the server needs to know.
    """
    check_encoder_files(model_dir)
    config_path = model_dir / "config.json"
    config = read_json(config_path)
    text_config = config.get("text_config")
    scopes = [config, text_config] if isinstance(text_config, dict) else [config]
    vocab_size = first_integer(scopes, ("vocab_size",))
    if vocab_size is None or vocab_size < 1:
        raise ConfigurationError(f"{config_path} has no vocab_size")
    return ModelInfo(
        name=name,
        created=int(weights_file(model_dir).stat().st_mtime),
        max_model_len=_longest_text(model_dir, config, scopes),
        vocab_size=vocab_size,
        eos_token_ids=frozenset(),
        config=config,
    )


def _longest_text(model_dir: Path, config: Mapping[str, Any], scopes: list[dict[str, Any]]) -> int:
    positions = first_integer(scopes, LENGTH_KEYS)
    if positions is None or positions < 1:
        positions = UNLIMITED
    elif config.get("model_type") in _SHIFTED:
        padding = config.get("pad_token_id")
        positions -= 1 + (padding if isinstance(padding, int) else 1)
    tokenizer = read_optional(model_dir / "tokenizer_config.json")
    limit = tokenizer.get("model_max_length") if isinstance(tokenizer, dict) else None
    if isinstance(limit, int) and 0 < limit < _LONGEST:
        positions = min(positions, limit)
    return max(1, positions)
