"""How to run a model on this machine: as an earlier measurement found, or a short one finds now,
or by default."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import openvino as ov

from fastovms.config import EngineConfig
from fastovms.disk_cache import DiskCache, file_identity, key_of
from fastovms.engine import tuning
from fastovms.engine.compilation import EXACT_WEIGHTS_SIZE, Precisions
from fastovms.engine.model import ModelFiles, PagedModel
from fastovms.errors import ConfigurationError

logger = logging.getLogger(__name__)

MAX_SECONDS: Final = 6.0
"""That a first start may take longer, for compiling and measuring."""

_ROUNDS: Final = 7
_FILE: Final = "choice.json"
_FORMAT: Final = 1
"""Of what is kept and how it is measured; a new one makes what is kept old."""

_MEMORY_SHARE: Final = 0.5
"""Of what is free, for weights of further ways to run the model."""


class TunedModel(NamedTuple):
    """`token_budget` is that of a step; None = nothing is known of it."""

    model: PagedModel
    token_budget: int | None


@dataclass(frozen=True, slots=True)
class Report:
    """What a measurement has found.

    Attributes:
        times: by way to run the model, the default first.
        choice: None = too little was measured.
        entry: where it is kept, if it is.
    """

    times: dict[str, tuning.Times]
    choice: tuning.Choice | None
    entry: Path | None


def load_tuned(
    model_dir: Path,
    config: EngineConfig,
    cache: DiskCache,
    clock: Callable[[], float] = time.perf_counter,
) -> TunedModel:
    """Compiles a model in the best known way.

    Raises:
        ConfigurationError: the model or the device cannot do it.
    """
    start = clock()
    files = _files(model_dir, config)
    key = _key(model_dir, config, files)
    entry = cache.find("tuning", key)
    kept = None if entry is None else _read(entry)
    if kept is not None:
        choices = sorted(files.choices, key=lambda choice: choice.name != kept.name)
        precisions, model = files.compile(choices)
        if precisions.name == kept.name:
            return TunedModel(model, kept.token_budget)
    else:
        precisions, model = files.compile(files.choices)
        if entry is not None:
            cache.discard(entry)
        if _is_worth_measuring(files, config) and cache.is_kept:
            compiled_in = clock() - start
            chosen = _tune_at_start(files, precisions, model, compiled_in, clock)
            if chosen is not None:
                choice, model = chosen
                _keep(cache, key, choice)
                return TunedModel(model, choice.token_budget)
    return TunedModel(model, None)


def measure_all(
    model_dir: Path,
    config: EngineConfig,
    cache: DiskCache,
    *,
    num_rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Report:
    """Measures every way to run a model, however long it takes, and keeps what it finds.

    Raises:
        ConfigurationError: the model or the device cannot do it.
    """
    files = _files(model_dir, config)
    models: dict[str, PagedModel] = {}
    for precisions in files.choices:
        try:
            name = precisions.name
            models[name] = files.compile([precisions])[1]
        except ConfigurationError as error:
            logger.warning("%s: %s", precisions.name, error)
    if not models:
        files.compile(files.choices)  # says why
    times = tuning.measure(models, clock, max_seconds=float("inf"), max_rounds=num_rounds)
    choice = tuning.choose(times)
    entry = None
    if choice is not None:
        entry = _keep(cache, _key(model_dir, config, files), choice)
    return Report(times, choice, entry)


def _files(model_dir: Path, config: EngineConfig) -> ModelFiles:
    return ModelFiles(
        model_dir,
        device=config.device,
        properties=config.plugin_config,
        exact=config.precision == "exact",
    )


def _is_worth_measuring(files: ModelFiles, config: EngineConfig) -> bool:
    if not config.tune or files.weights_size <= EXACT_WEIGHTS_SIZE:
        return False
    return len(files.choices) > 1 or config.max_num_batched_tokens is None


def _tune_at_start(
    files: ModelFiles,
    precisions: Precisions,
    model: PagedModel,
    compiled_in: float,
    clock: Callable[[], float],
) -> tuple[tuning.Choice, PagedModel] | None:
    """Measures as much as there is time and memory for. None = not enough for a choice."""
    start = clock()
    models = {precisions.name: model}
    for other in files.choices:
        spent = clock() - start
        room = files.available_memory() * _MEMORY_SHARE
        if spent + compiled_in > MAX_SECONDS / 2 or files.weights_size > room:
            break
        if other.name not in models:
            try:
                models[other.name] = files.compile([other])[1]
            except ConfigurationError as error:
                logger.info("%s: %s", other.name, error)
    left = MAX_SECONDS - (clock() - start)
    times = tuning.measure(models, clock, max_seconds=left, max_rounds=_ROUNDS)
    choice = tuning.choose(times)
    if choice is None:
        logger.info("too large to be measured at start: fastovms tune does it")
        return None
    logger.info(
        "measured %d ways to run the model in %.1f s: %s, %d tokens a step",
        len(models),
        clock() - start,
        choice.name,
        choice.token_budget,
    )
    return choice, models[choice.name]


# What is kept


def _key(model_dir: Path, config: EngineConfig, files: ModelFiles) -> str:
    """Of model, machine and whatever else decides what is fastest."""
    names = ("openvino_model.xml", "openvino_model.bin")
    core = ov.Core()
    return key_of(
        _FORMAT,
        file_identity(model_dir / name for name in names),
        ov.get_version(),
        files.device,
        str(core.get_property(files.device, "FULL_DEVICE_NAME")),
        len(os.sched_getaffinity(0)),
        [choice.name for choice in files.choices],
        {name: str(value) for name, value in config.plugin_config.items()},
    )


def _keep(cache: DiskCache, key: str, choice: tuning.Choice) -> Path | None:
    content = {"name": choice.name, "gain": choice.gain, "token_budget": choice.token_budget}

    def fill(directory: Path) -> None:
        (directory / _FILE).write_text(json.dumps(content))

    return cache.put("tuning", key, fill, replace=True)


def _read(entry: Path) -> tuning.Choice | None:
    """None = it is broken."""
    try:
        content: Any = json.loads((entry / _FILE).read_bytes())
        name, gain, budget = (content[key] for key in ("name", "gain", "token_budget"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(name, str) or not isinstance(budget, int) or budget < 1:
        return None
    return tuning.Choice(name, float(gain), budget)
