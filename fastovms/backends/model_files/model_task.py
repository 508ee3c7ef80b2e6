"""Finds out what a model does: generate text, make vectors of texts, or score pairs of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fastovms.backends.model_files.json_files import read_optional
from fastovms.backends.model_files.required_files import (
    graph_file,
    is_openvino_ir,
    takes_images,
)
from fastovms.encoding import Pooling, Task
from fastovms.errors import ConfigurationError

CLASSIFIER: Final = "ForSequenceClassification"
"""What the names of architectures end in that score texts."""

STATES: Final = ("last_hidden_state", "token_embeddings", "sentence_embedding")
"""The names of outputs that vectors are made of."""

LOGITS: Final = "logits"
_NAMES: Final = re.compile(rb'names="([^"]*)"')
_MODES: Final = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_lasttoken": Pooling.LAST,
}
_POOLING_MODULE: Final = "Pooling"


def find_task(model_dir: Path, wanted: str = "auto") -> Task:
    """Returns what the operator says that the model does, or what its files say.

    Models that score by generating, as Qwen3's rerankers do, look like any that generates text: the
    operator has to name their task.

    Raises:
        ConfigurationError: its graph cannot do what the operator wants, or does nothing of that.
    """
    graph = graph_file(model_dir)
    if not graph.is_file() or not is_openvino_ir(graph):
        # Whoever reads its files finds what is wrong with them.
        return Task.TEXT_GENERATION if wanted == "auto" else Task(wanted)
    if takes_images(model_dir):
        found = Task.TEXT_GENERATION
        possible = {found}
    else:
        names = _value_names(graph)
        possible = _possible(names)
        if not possible:
            raise ConfigurationError(
                f"{model_dir} cannot be served: its graph has none of the outputs "
                f"{', '.join((*STATES, LOGITS))}"
            )
        found = _likely(model_dir, possible)
    if wanted == "auto":
        return found
    task = Task(wanted)
    if task not in possible:
        raise ConfigurationError(
            f"--task {wanted} cannot be had of {model_dir}: its graph is one for {found.value}"
        )
    return task


def find_pooling(model_dir: Path, wanted: str, config: Mapping[str, Any]) -> Pooling:
    """Returns how the operator wants vectors made of the states of tokens, or how the model's files
    say that it is done."""
    if wanted != "auto":
        return Pooling(wanted)
    modules = read_optional(model_dir / "modules.json")
    folders = ["1_Pooling"]
    if isinstance(modules, list):
        folders = [
            str(module.get("path"))
            for module in modules
            if isinstance(module, dict) and str(module.get("type")).endswith(_POOLING_MODULE)
        ] or folders
    for folder in folders:
        modes = read_optional(model_dir / folder / "config.json")
        if isinstance(modes, dict):
            for key, pooling in _MODES.items():
                if modes.get(key) is True:
                    return pooling
    return Pooling.LAST if _is_decoder(config) else Pooling.CLS


def _is_decoder(config: Mapping[str, Any]) -> bool:
    names = config.get("architectures")
    return isinstance(names, list) and any("CausalLM" in str(name) for name in names)


def _possible(names: set[str]) -> set[Task]:
    if names & set(STATES):
        return {Task.EMBEDDINGS}
    if LOGITS not in names:
        return set()
    return {Task.RERANK, Task.TEXT_GENERATION} if "beam_idx" in names else {Task.RERANK}


def _likely(model_dir: Path, possible: set[Task]) -> Task:
    if len(possible) == 1:
        [task] = possible
        return task
    config = read_optional(model_dir / "config.json")
    architectures = config.get("architectures") if isinstance(config, dict) else None
    names = architectures if isinstance(architectures, list) else []
    scores = any(str(name).endswith(CLASSIFIER) for name in names)
    return Task.RERANK if scores else Task.TEXT_GENERATION


def _value_names(graph: Path) -> set[str]:
    """Returns the names that a graph's inputs, outputs and other values have."""
    try:
        text = graph.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {graph}: {error.strerror}") from None
    found = {name for names in _NAMES.findall(text) for name in names.decode().split(",")}
    return found & {*STATES, LOGITS, "beam_idx"}
