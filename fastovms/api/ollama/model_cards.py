"""Describes models as Ollama does: in lists, and each by itself."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastovms.api.ollama.timestamps import timestamp
from fastovms.api.serving.served import KnownModel, ServedModel
from fastovms.encoding import Task
from fastovms.params import ModelInfo

FORMAT: Final = "openvino"
_FOR_EVER: Final = 100 * 365 * 24 * 3600.0
"""Seconds for which a model is said to stay that nobody has told to leave: Ollama's clients know no
model without such a time."""

_WORDS: Final = ("completion", "tools", "insert", "vision", "thinking", "embedding")
"""The capabilities that Ollama's clients know."""

_PURPOSES: Final = {Task.TEXT_GENERATION: ("completion",), Task.EMBEDDINGS: ("embedding",)}
"""What models of each kind can do, whether they were loaded or not."""

_CONFIG_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "embedding_length": ("hidden_size", "n_embd", "d_model"),
    "block_count": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "feed_forward_length": ("intermediate_size",),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "rope.freq_base": ("rope_theta",),
    "vocab_size": ("vocab_size",),
}
"""Where config.json has what Ollama's clients know by other names."""

_INTEGER: Final = re.compile(r"[iu](\d+)")

Members = dict[str, Any]


def list_card(model: KnownModel, name: str) -> Members:
    """Returns what lists tell of a model under one of its names."""
    return {
        "name": name,
        "model": name,
        "modified_at": timestamp(model.created),
        "size": model.file_size,
        "digest": _digest(model),
        "details": _details(model),
    }


def running_card(model: KnownModel, now: float, seconds_left: float | None) -> Members:
    """Returns what is told of a model in memory.

    Args:
        seconds_left: how long it stays if nobody asks for it; None = for ever.
    """
    card = {**list_card(model, model.name), "size": model.size}
    del card["modified_at"]
    expires_at = now + (_FOR_EVER if seconds_left is None else seconds_left)
    context = {} if model.max_model_len is None else {"context_length": model.max_model_len}
    return {**card, "expires_at": timestamp(expires_at), "size_vram": 0, **context}


def full_card(model: KnownModel, *, fills_in: bool) -> Members:
    """Returns all that is told of a model.

    Args:
        fills_in: whether it can write what stands before a suffix.
    """
    info, served = model.info, model.served
    template = served.chat.template if isinstance(served, ServedModel) else None
    capabilities = {*_PURPOSES.get(model.task, ()), *(model.capabilities or ())}
    if fills_in:
        capabilities.add("insert")
    return {
        "modelfile": f"FROM {model.name}\n",
        "parameters": "" if info is None else _parameters(info),
        "template": "" if template is None else template.source,
        "details": _details(model),
        "model_info": _model_info(model),
        "capabilities": [word for word in _WORDS if word in capabilities],
        "modified_at": timestamp(model.created),
    }


def _config(model: KnownModel) -> Mapping[str, object]:
    return {} if model.info is None else model.info.config


def _family(model: KnownModel) -> str:
    """Returns the kind of the model, as its config.json has it; "" while that is not read."""
    return str(_config(model).get("model_type") or "")


def _details(model: KnownModel) -> Members:
    family, info = _family(model), model.info
    weights = None if info is None else info.weights
    return {
        "parent_model": "",
        "format": FORMAT,
        "family": family,
        "families": [family] if family else [],
        "parameter_size": "" if weights is None else _short(weights.num_parameters),
        "quantization_level": "" if weights is None else _level(weights.element_type),
    }


def _model_info(model: KnownModel) -> Members:
    family, config, info = _family(model) or FORMAT, _config(model), model.info
    inner = config.get("text_config")
    scopes = [config, inner] if isinstance(inner, Mapping) else [config]
    general: Members = {"general.architecture": family, "general.basename": model.name}
    if info is not None and info.weights is not None:
        general["general.parameter_count"] = info.weights.num_parameters
    numbers = {key: _first(scopes, names) for key, names in _CONFIG_KEYS.items()}
    numbers = {"context_length": model.max_model_len, **numbers}
    known = {f"{family}.{key}": value for key, value in numbers.items() if value is not None}
    return {**general, **known}


def _first(scopes: Sequence[Mapping[str, object]], names: Sequence[str]) -> object:
    """Returns the first number that there is under one of the names."""
    found = (scope.get(name) for name in names for scope in scopes)
    return next((value for value in found if type(value) in (int, float)), None)


def _short(count: int) -> str:
    """Returns a number of parameters as Ollama writes it: 7.6B, 134.52M."""
    for unit, letter, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 2)):
        if count >= unit:
            return f"{count / unit:.{digits}f}{letter}"
    return str(count)


def _level(element_type: str) -> str:
    """Returns how weights are stored, in the words of OpenVINO's tools: INT4, F16."""
    integer = _INTEGER.fullmatch(element_type)
    return f"INT{integer[1]}" if integer else element_type.upper()


def _parameters(info: ModelInfo) -> str:
    """Returns the model's own defaults, a line each, in Ollama's words."""
    defaults = info.defaults
    values = {
        "temperature": defaults.temperature,
        "top_k": defaults.top_k,
        "top_p": defaults.top_p,
        "min_p": defaults.min_p,
        "repeat_penalty": defaults.repetition_penalty,
        "num_predict": defaults.max_new_tokens,
    }
    told = (f"{name:<30} {value}" for name, value in values.items() if value is not None)
    return "\n".join(told)


def _digest(model: KnownModel) -> str:
    """Returns what stands for the files of a model, or for its name while they are not known."""
    return hashlib.sha256((model.fingerprint or model.name).encode()).hexdigest()
