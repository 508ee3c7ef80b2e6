"""Reads what `config.json` and `generation_config.json` say of a model: its context, vocabulary,
end tokens and defaults of sampling."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from fastovms.backends.model_files.json_files import first_integer, is_integer, read_json
from fastovms.backends.model_files.required_files import check_files, takes_images, weights_file
from fastovms.errors import ConfigurationError
from fastovms.params import ModelInfo, SamplingDefaults
from fastovms.text.templating.template_files import end_token_ids

logger = logging.getLogger(__name__)

LENGTH_KEYS: Final = (
    "max_position_embeddings",
    "n_positions",
    "seq_len",
    "seq_length",
    "n_ctx",
    "max_seq_len",
    "sliding_window",
)
"""Keys of config.json that may say how long the context is; the first integer wins, as in OVMS."""

UNLIMITED: Final = 2**20
"""The context length of a model that names none. The KV cache is the limit then."""

_MAX_SETTING: Final = 1_000_000_000
"""The largest number that is believed: more than anybody means."""

_SAMPLING_RANGES: Final[Mapping[str, Callable[[float], bool]]] = {
    "temperature": lambda value: 0 <= value <= _MAX_SETTING,
    "top_p": lambda value: 0 < value <= 1,
    "min_p": lambda value: 0 <= value <= 1,
    "top_k": lambda value: 0 <= value <= _MAX_SETTING,
    "max_new_tokens": lambda value: value >= 1,
    "repetition_penalty": lambda value: 0 < value <= _MAX_SETTING,
    "frequency_penalty": lambda value: -2 <= value <= 2,
    "presence_penalty": lambda value: -2 <= value <= 2,
    "length_penalty": lambda value: -20 <= value <= 20,
}


def read_model_info(
    model_dir: Path, *, name: str | None = None, generation_config: Path | None = None
) -> ModelInfo:
    """Returns what the model is called and what it can do.

    `do_sample` is not looked at: a request that gives no temperature samples, as with vLLM and
    OVMS, whose default temperature is 1 as well.

    Args:
        name: the name clients use; None = the directory's.
        generation_config: file in place of the directory's generation_config.json.

    Raises:
        ConfigurationError: a file is missing, broken, or lacks what the server needs to know.
    """
    check_files(model_dir)
    config_path = model_dir / "config.json"
    config = read_json(config_path)
    text_config = config.get("text_config")
    scopes = [config, text_config] if isinstance(text_config, dict) else [config]
    generation_path = generation_config or model_dir / "generation_config.json"
    generation = read_json(generation_path) if generation_path.exists() else {}

    vocab_size = first_integer(scopes, ("vocab_size",))
    if vocab_size is None or vocab_size < 1:
        raise ConfigurationError(f"{config_path} has no vocab_size")
    max_model_len = first_integer(scopes, LENGTH_KEYS)
    if max_model_len is None or max_model_len < 1:
        max_model_len = UNLIMITED
    eos_token_ids = _eos_token_ids(generation, generation_path) | end_token_ids(model_dir)
    for scope in scopes:
        eos_token_ids |= _eos_token_ids(scope, config_path)
    return ModelInfo(
        name=name or model_dir.resolve().name,
        created=int(weights_file(model_dir).stat().st_mtime),
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        defaults=_sampling_defaults(generation, generation_path),
        config=config,
        takes_images=takes_images(model_dir),
    )


def log_missing(model: ModelInfo) -> None:
    """Tells what the model's files do not say."""
    if model.max_model_len == UNLIMITED:
        logger.warning(
            "config.json of %s names no context length: only the KV cache limits it", model.name
        )
    if not model.eos_token_ids:
        logger.warning("%s has no eos_token_id: answers end at max_tokens only", model.name)


def _eos_token_ids(config: Mapping[str, object], path: Path) -> frozenset[int]:
    """Returns one id or several; none when the file says nothing."""
    value = config.get("eos_token_id")
    if value is None:
        return frozenset()
    token_ids = value if isinstance(value, list) else [value]
    if not all(is_integer(token_id) for token_id in token_ids):
        raise ConfigurationError(f"{path}: eos_token_id must be an integer or a list of them")
    return frozenset(token_ids)


def _sampling_defaults(generation: Mapping[str, Any], path: Path) -> SamplingDefaults:
    defaults: dict[str, Any] = {}
    for name, is_allowed in _SAMPLING_RANGES.items():
        value = generation.get(name)
        if value is None:
            continue
        of_integers = name in ("top_k", "max_new_tokens")
        is_number = is_integer(value) or (isinstance(value, float) and not of_integers)
        if not is_number or not is_allowed(value):
            raise ConfigurationError(f"{path}: {name} must not be {json.dumps(value)}")
        defaults[name] = value if of_integers else float(value)
    return SamplingDefaults(**defaults)
