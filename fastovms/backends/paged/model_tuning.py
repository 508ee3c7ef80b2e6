"""Finds how to run a model on this machine: as an earlier measurement found, or a short one finds
now, or by default."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Set
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import openvino as ov

from fastovms.cgroup import num_usable_cpus
from fastovms.config import DEFAULT_TOKEN_BUDGET, EngineConfig
from fastovms.disk_cache import DiskCache, file_identity, key_of
from fastovms.engine.model import tuning
from fastovms.engine.model.compilation import EXACT_WEIGHTS_SIZE, Precisions
from fastovms.engine.model.model import ExportedModel, PagedModel
from fastovms.engine.model.paging import DEFAULT_MAX_MODEL_LEN
from fastovms.errors import ConfigurationError

logger = logging.getLogger(__name__)

MAX_SECONDS: Final = 8.0
"""Seconds that a first start may take longer, for compiling and measuring."""

MAX_COMPILATION: Final = 4.0
"""The part of `MAX_SECONDS` that compiling may take, for further ways to be tried."""
MAX_SECONDS_FOR_BUDGET: Final = 2.5
"""The part of `MAX_SECONDS` in which the token budget is measured."""

_ROUNDS: Final = 7
_FILE: Final = "choice.json"
_FORMAT: Final = 4
"""The version of what is kept and how it is measured; a new one makes what is kept old."""

_MEMORY_SHARE: Final = 0.5
"""The share of the free memory that may hold weights of further ways to run the model."""


class TunedModel(NamedTuple):
    """A compiled model and the token budget of its steps; None = nothing is known of that."""

    model: PagedModel
    token_budget: int | None


@dataclass(frozen=True, slots=True)
class TuningResult:
    """How to run a model.

    Attributes:
        name: the name of its precisions.
        token_budget: the most tokens of a step.
    """

    name: str
    token_budget: int


@dataclass(frozen=True, slots=True)
class TuningReport:
    """What a measurement by hand has found.

    Attributes:
        loads: times of `LOAD_CASES` by way to run the model, the default first.
        budgets: times of `BUDGET_CASES`, likewise.
        entry: where the finding is kept; None = it is not.
    """

    loads: dict[str, tuning.Times]
    budgets: dict[str, tuning.Times]
    finding: TuningResult
    entry: Path | None


def read_files(
    model_dir: Path, config: EngineConfig, max_model_len: int = DEFAULT_MAX_MODEL_LEN
) -> ExportedModel:
    """Raises ConfigurationError: the model cannot be paged, or there is no such device."""
    return ExportedModel(
        model_dir,
        device=config.device,
        properties=config.plugin_config,
        exact=config.precision == "exact",
        max_model_len=max_model_len,
    )


def load_tuned(
    files: ExportedModel,
    config: EngineConfig,
    cache: DiskCache,
    clock: Callable[[], float] = time.perf_counter,
) -> TunedModel:
    """Compiles a model in the best known way. Where none is known, and there is a cache to keep it
    in, a first start measures, unless that is not worth its time: then only a measurement by hand
    makes one known.

    Raises:
        ConfigurationError: the device cannot do it.
    """
    start = clock()
    if not config.tune or not cache.is_kept:
        return TunedModel(files.compile(files.choices)[1], None)
    key = _key(config, files)
    entry, kept = _find(cache, key, files)
    if kept is not None:
        choices = sorted(files.choices, key=lambda choice: choice.name != kept.name)
        precisions, model = files.compile(choices)
        return TunedModel(model, kept.token_budget if precisions.name == kept.name else None)
    if entry is not None:
        cache.discard(entry)
    precisions, model = files.compile(files.choices)
    if not _is_worth_measuring(files, config):
        return TunedModel(model, None)
    finding, model = _tune_at_start(files, precisions, model, clock() - start, clock)
    _keep(cache, key, finding)
    return TunedModel(model, finding.token_budget)


def find_kept(files: ExportedModel, config: EngineConfig, cache: DiskCache) -> TuningResult | None:
    """Returns what an earlier measurement of the model on this machine has found, or None."""
    return _find(cache, _key(config, files), files)[1]


def measure_all(
    model_dir: Path,
    config: EngineConfig,
    cache: DiskCache,
    *,
    num_rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> TuningReport:
    """Measures every way to run a model, however long it takes, and keeps what it finds.

    Raises:
        ConfigurationError: the model or the device cannot do it.
    """
    files = read_files(model_dir, config)
    models: dict[str, PagedModel] = {}
    for precisions in files.choices:
        try:
            name = precisions.name
            models[name] = files.compile([precisions])[1]
        except ConfigurationError as error:
            logger.warning("%s: %s", precisions.name, error)
    if not models:
        files.compile(files.choices)  # says why
    measure = partial(tuning.measure, max_seconds=float("inf"), max_rounds=num_rounds)
    loads = measure(models, tuning.LOAD_CASES, clock)
    budgets = measure(models, tuning.BUDGET_CASES, clock)
    choice = tuning.choose(loads)
    assert choice is not None, f"{num_rounds} rounds are too few"
    budget = tuning.choose_token_budget(budgets[choice.name]) or DEFAULT_TOKEN_BUDGET
    finding = TuningResult(choice.name, budget)
    return TuningReport(loads, budgets, finding, _keep(cache, _key(config, files), finding))


def _is_worth_measuring(files: ExportedModel, config: EngineConfig) -> bool:
    if files.weights_size <= EXACT_WEIGHTS_SIZE:
        return False
    return len(files.choices) > 1 or config.max_num_batched_tokens is None


def _tune_at_start(
    files: ExportedModel,
    precisions: Precisions,
    model: PagedModel,
    compiled_in: float,
    clock: Callable[[], float],
) -> tuple[TuningResult, PagedModel]:
    """Measures as much as there is time and memory for."""
    logger.info(
        "measuring how the model runs fastest here, at the first start only: up to %.0f s",
        MAX_SECONDS,
    )
    start = clock()
    models = {precisions.name: model}
    for other in files.choices:
        room = files.available_memory() * _MEMORY_SHARE
        if clock() - start + compiled_in > MAX_COMPILATION or files.weights_size > room:
            break
        if other.name not in models:
            try:
                models[other.name] = files.compile([other])[1]
            except ConfigurationError as error:
                logger.info("%s: %s", other.name, error)
    measure = partial(tuning.measure, max_rounds=_ROUNDS)
    choice = None
    if len(models) > 1:
        left = MAX_SECONDS - (clock() - start) - MAX_SECONDS_FOR_BUDGET
        choice = tuning.choose(measure(models, tuning.LOAD_CASES, clock, max_seconds=left))
    name = precisions.name if choice is None else choice.name
    left = min(MAX_SECONDS_FOR_BUDGET, MAX_SECONDS - (clock() - start))
    times = measure({name: models[name]}, tuning.BUDGET_CASES, clock, max_seconds=left)
    budget = tuning.choose_token_budget(times[name])
    if choice is None and budget is None:
        logger.info(
            "the model could not be measured in the %.0f s that a start takes for it: it runs in "
            "the default way, and fastovms tune measures it at length",
            MAX_SECONDS,
        )
    else:
        logger.info(
            "measured in %.1f s: best of %d ways to run the model is %s, with %d tokens a step",
            clock() - start,
            1 if choice is None else len(models),
            name,
            budget or DEFAULT_TOKEN_BUDGET,
        )
    return TuningResult(name, budget or DEFAULT_TOKEN_BUDGET), models[name]


# What is kept


def _key(config: EngineConfig, files: ExportedModel) -> str:
    """Returns the key of model, machine and whatever else decides what is fastest."""
    names = ("openvino_model.xml", "openvino_model.bin")
    core = ov.Core()
    return key_of(
        _FORMAT,
        file_identity(files.model_dir / name for name in names),
        ov.get_version(),
        files.device,
        str(core.get_property(files.device, "FULL_DEVICE_NAME")),
        num_usable_cpus(),
        [choice.name for choice in files.choices],
        {name: str(value) for name, value in config.plugin_config.items()},
    )


def _find(
    cache: DiskCache, key: str, files: ExportedModel
) -> tuple[Path | None, TuningResult | None]:
    """Returns the entry of a finding, and what it says; None = there is none, or it is broken."""
    entry = cache.find("tuning", key)
    if entry is None:
        return None, None
    return entry, _read(entry, {choice.name for choice in files.choices})


def _keep(cache: DiskCache, key: str, finding: TuningResult) -> Path | None:
    def fill(directory: Path) -> None:
        (directory / _FILE).write_text(json.dumps(asdict(finding)))

    return cache.put("tuning", key, fill, replace=True)


def _read(entry: Path, names: Set[str]) -> TuningResult | None:
    """Reads a finding; None = it is broken. `names` are those that precisions may have."""
    try:
        content: Any = json.loads((entry / _FILE).read_bytes())
        name, budget = content["name"], content["token_budget"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(name, str) or not isinstance(budget, int):
        return None
    if name not in names or budget < 1:
        return None
    return TuningResult(name, budget)
