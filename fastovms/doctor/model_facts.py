"""Reads a model as a server would, and runs it for a moment."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import openvino as ov

from fastovms.api.serving.chat_model import ChatModel
from fastovms.backends.model_files.model_info import read_model_info
from fastovms.backends.model_files.required_files import graph_file, takes_images
from fastovms.backends.paged.model_tuning import find_kept, read_files
from fastovms.config.engine_config import EngineConfig
from fastovms.config.model_config import ModelConfig
from fastovms.doctor.weight_traffic import WeightTraffic, read_traffic
from fastovms.engine.model import tuning
from fastovms.engine.model.compilation import EXACT_WEIGHTS_SIZE
from fastovms.engine.model.model import ExportedModel
from fastovms.errors import UnsupportedModel
from fastovms.system.disk_cache import DiskCache

_STEP: Final = tuning.DECODES[1]
_RUN_SECONDS: Final = 5.0
_MAX_STEPS: Final = 200


@dataclass(frozen=True, slots=True)
class RunFacts:
    """How the paged engine runs a model.

    Attributes:
        way: the name of its precisions.
        way_reason: why it is these.
        token_budget: the most tokens of a step.
        kv_bytes_per_token: what the cache keeps of a token.
        context: tokens before the one that a step of the run has computed.
        seconds_per_token: of one sequence; None = it was not run, or too slow for a figure.
    """

    way: str
    way_reason: str
    token_budget: int
    kv_bytes_per_token: float
    context: int
    seconds_per_token: float | None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model, and how it would be run.

    Attributes:
        device: OpenVINO's name of it.
        backend_reason: why it is that backend.
        run: None = the genai backend runs it, into which nothing here looks.
        histories: how the chat template shows each kind of history.
    """

    name: str
    path: Path
    max_model_len: int
    device: str
    traffic: WeightTraffic
    backend: str
    backend_reason: str
    run: RunFacts | None
    histories: Mapping[str, str] = field(default_factory=dict)


def read_model(model: ModelConfig, directory: Path, cache: DiskCache, *, runs: bool) -> ModelFacts:
    """Reads the model, and compiles it for the paged backend, which takes seconds.

    Args:
        directory: where it lies, or what was made of its GGUF file.
        runs: whether to compute tokens, too, for some seconds.

    Raises:
        ConfigurationError: a file is missing or broken, or the device cannot do it.
    """
    info = read_model_info(directory, name=model.name, generation_config=model.generation_config)
    graph = ov.Core().read_model(graph_file(directory))
    template = ChatModel.load(directory, model.chat, cache).template
    backend, reason, files = _choose_backend(directory, model.engine)
    return ModelFacts(
        name=model.name,
        path=model.path,
        max_model_len=model.engine.max_model_len or info.max_model_len,
        device=model.engine.device if files is None else files.device,
        traffic=read_traffic(graph, info.config),
        backend=backend,
        backend_reason=reason,
        run=None if files is None else _run(files, model.engine, cache, runs=runs),
        histories={} if template is None else template.matrix,
    )


def _choose_backend(directory: Path, engine: EngineConfig) -> tuple[str, str, ExportedModel | None]:
    """Returns the backend, why it is that one, and the model as the paged one reads it."""
    if engine.backend == "genai":
        return "genai", "as --backend says", None
    if takes_images(directory):
        return "genai", "the model takes images", None
    try:
        files = read_files(directory, engine)
    except UnsupportedModel as error:
        if engine.backend == "paged":
            raise
        return "genai", str(error), None
    reason = "as --backend says" if engine.backend == "paged" else "it can run the model"
    return "paged", reason, files


def _run(files: ExportedModel, engine: EngineConfig, cache: DiskCache, *, runs: bool) -> RunFacts:
    kept = find_kept(files, engine, cache) if engine.tune else None
    choices = files.choices
    if kept is not None:
        choices = sorted(choices, key=lambda choice: choice.name != kept.name)
    precisions, model = files.compile(choices)
    seconds = None
    if runs:
        times: Mapping[str, tuning.Times] = tuning.measure(
            {precisions.name: model},
            [_STEP],
            time.perf_counter,
            max_seconds=_RUN_SECONDS,
            max_rounds=_MAX_STEPS,
        )
        steps = times[precisions.name][_STEP]
        seconds = statistics.median(steps) if steps else None
    budget = engine.max_num_batched_tokens or (kept.token_budget if kept is not None else None)
    return RunFacts(
        way=precisions.name,
        way_reason=_why(files, engine, cache, is_kept=kept is not None),
        token_budget=budget or engine.token_budget,
        kv_bytes_per_token=model.bytes_per_block / model.block_size,
        context=_STEP.context,
        seconds_per_token=seconds,
    )


def _why(files: ExportedModel, engine: EngineConfig, cache: DiskCache, *, is_kept: bool) -> str:
    if is_kept:
        return "measured on this machine to be the fastest"
    if engine.precision == "exact":
        return "--precision exact"
    if len(files.choices) == 1 and files.weights_size <= EXACT_WEIGHTS_SIZE:
        return "the model is so small that f32 costs nothing"
    if len(files.choices) == 1:
        return "the only way that is worth trying here"
    if not engine.tune:
        return "the default: --no-tune measures nothing"
    if not cache.is_kept:
        return "the default: without a cache directory nothing measured would be kept"
    return "the default: nothing was measured yet, which an idle server or fastovms tune does"
