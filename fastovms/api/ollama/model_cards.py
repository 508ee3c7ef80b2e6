"""Describes models as Ollama does: in lists, and each by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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

Members = dict[str, Any]


def list_card(model: KnownModel, name: str) -> Members:
    """Returns what lists tell of a model under one of its names."""
    return {
        "name": name,
        "model": name,
        "modified_at": timestamp(model.created),
        "size": model.size,
        "digest": _digest(model),
        "details": _details(model),
    }


def running_card(model: KnownModel, now: float) -> Members:
    """Returns what is told of a model in memory."""
    card = list_card(model, model.name)
    del card["modified_at"]
    context = {} if model.max_model_len is None else {"context_length": model.max_model_len}
    return {**card, "expires_at": timestamp(now + _FOR_EVER), "size_vram": 0, **context}


def full_card(model: KnownModel, *, fills_in: bool) -> Members:
    """Returns all that is told of a model.

    Args:
        fills_in: whether it can write what stands before a suffix.
    """
    info = _info(model)
    served = model.served
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


def _info(model: KnownModel) -> ModelInfo | None:
    return None if model.served is None else model.served.info


def _config(model: KnownModel) -> Mapping[str, object]:
    info = _info(model)
    return {} if info is None else info.config


def _family(model: KnownModel) -> str:
    """Returns the kind of the model, as its config.json has it; that is read when it is loaded."""
    return str(_config(model).get("model_type") or "")


def _details(model: KnownModel) -> Members:
    family = _family(model)
    return {
        "parent_model": "",
        "format": FORMAT,
        "family": family,
        "families": [family] if family else [],
        "parameter_size": "",
        "quantization_level": "",
    }


def _model_info(model: KnownModel) -> Members:
    family, config = _family(model) or FORMAT, _config(model)
    lengths = {"context_length": model.max_model_len, "embedding_length": config.get("hidden_size")}
    known = {f"{family}.{key}": value for key, value in lengths.items() if value is not None}
    return {"general.architecture": family, "general.basename": model.name, **known}


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
    info = _info(model)
    known = model.name if info is None else info.fingerprint or model.name
    return hashlib.sha256(known.encode()).hexdigest()
