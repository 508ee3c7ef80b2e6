"""Finds how to run a model on this machine: as an earlier measurement has found, or by default; and
measures it."""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections.abc import Callable, Set
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import openvino as ov

from fastovms.config.engine_config import EngineConfig
from fastovms.engine.model import tuning
from fastovms.engine.model.compilation import EXACT_WEIGHTS_SIZE, has_vnni
from fastovms.engine.model.graph.paging import DEFAULT_MAX_MODEL_LEN
from fastovms.engine.model.model import ExportedModel, PagedModel
from fastovms.errors import ConfigurationError
from fastovms.system.cgroup import num_usable_cpus
from fastovms.system.disk_cache import DiskCache, file_identity, key_of

logger = logging.getLogger(__name__)

NUM_ROUNDS: Final = 15
"""How often two ways to run a model are compared."""

_FILE: Final = "choice.json"
_FORMAT: Final = 5
"""The version of what is kept and how it is measured; a new one makes what is kept old."""

_MEMORY_SHARE: Final = 0.5
"""The share of the free memory that may hold weights of further ways to run the model."""


class TunedModel(NamedTuple):
    """A compiled model.

    Attributes:
        token_budget: that of its steps; None = nothing is known of that.
        is_to_be_measured: whether it is worth measuring, which nobody has done yet.
    """

    model: PagedModel
    token_budget: int | None
    is_to_be_measured: bool = False


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
        gains: how much faster than the default each way was.
        budgets: times of `BUDGET_CASES`, likewise.
        entry: where the finding is kept; None = it is not.
        int4_group_size: that of `ExportedModel`.
        has_vnni: whether the CPU multiplies 8-bit integers at once.
    """

    loads: dict[str, tuning.Times]
    gains: dict[str, float]
    budgets: dict[str, tuning.Times]
    finding: TuningResult
    entry: Path | None
    int4_group_size: int | None
    has_vnni: bool


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


def load_tuned(files: ExportedModel, config: EngineConfig, cache: DiskCache) -> TunedModel:
    """Compiles a model in the best known way, by default as `files` has it.

    Raises:
        ConfigurationError: the device cannot do it.
    """
    if not config.tune or not cache.is_kept:
        return TunedModel(files.compile(files.choices)[1], None)
    entry, kept = _find(cache, _key(config, files), files)
    if kept is not None:
        choices = sorted(files.choices, key=lambda choice: choice.name != kept.name)
        precisions, model = files.compile(choices)
        return TunedModel(model, kept.token_budget if precisions.name == kept.name else None)
    if entry is not None:
        cache.discard(entry)
    model = files.compile(files.choices)[1]
    return TunedModel(model, None, is_to_be_measured=_is_worth_measuring(files, config))


def find_kept(files: ExportedModel, config: EngineConfig, cache: DiskCache) -> TuningResult | None:
    """Returns what an earlier measurement of the model on this machine has found, or None."""
    return _find(cache, _key(config, files), files)[1]


def measure_all(
    model_dir: Path,
    config: EngineConfig,
    cache: DiskCache,
    *,
    num_rounds: int = NUM_ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
    memory_speed: Callable[[], float] = lambda: 1.0,
) -> TuningReport | None:
    """Measures every way to run a model that there is memory for, however long it takes, and keeps
    what it finds. Beside the default one way at a time is in memory.

    Args:
        memory_speed: see `tuning.measure`.

    Returns:
        What was found, or None where the machine was too busy for it.

    Raises:
        ConfigurationError: the model or the device cannot do it.
    """
    files = read_files(model_dir, config)
    measure = partial(
        tuning.measure,
        clock=clock,
        max_seconds=float("inf"),
        max_rounds=num_rounds,
        memory_speed=memory_speed,
    )
    default, model = files.compile(files.choices)
    loads: dict[str, tuning.Times] = {}
    ratios: dict[str, list[float]] = {}
    budgets = measure({default.name: model}, tuning.BUDGET_CASES)
    for other in files.choices:
        room = files.available_memory() * _MEMORY_SHARE
        if other.name == default.name or files.weights_size * other.num_variants > room:
            continue
        try:
            rival = files.compile([other])[1]
        except ConfigurationError as error:
            logger.warning("%s: %s", other.name, error)
            continue
        times = measure({default.name: model, other.name: rival}, tuning.LOAD_CASES)
        ratios[other.name] = tuning.speed_ratios(times[other.name], times[default.name])
        loads.setdefault(default.name, times[default.name])
        loads[other.name] = times[other.name]
        budgets |= measure({other.name: rival}, tuning.BUDGET_CASES)
        del rival  # its memory is for the next one
    if not loads:
        loads = measure({default.name: model}, tuning.LOAD_CASES)
    fewest = min(choice.num_variants for choice in files.choices)
    twice = {choice.name for choice in files.choices if choice.num_variants > fewest}
    choice = tuning.choose(default.name, ratios, twice)
    budget = None if choice is None else tuning.choose_token_budget(budgets[choice.name])
    if choice is None or budget is None:
        return None
    gains = {name: statistics.median(found) for name, found in ratios.items()}
    finding = TuningResult(choice.name, budget)
    entry = _keep(cache, _key(config, files), finding)
    return TuningReport(
        loads,
        {default.name: 1.0, **gains},
        budgets,
        finding,
        entry,
        int4_group_size=files.int4_group_size,
        has_vnni=has_vnni(),
    )


def _is_worth_measuring(files: ExportedModel, config: EngineConfig) -> bool:
    if files.weights_size <= EXACT_WEIGHTS_SIZE:
        return False
    return len(files.choices) > 1 or config.max_num_batched_tokens is None


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
