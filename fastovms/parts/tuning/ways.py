"""Measures and compares all variants of a model, for `fastovms tune`."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import ExportedModel, has_vnni
from fastovms.errors import ConfigurationError
from fastovms.parts.tuning import measurement as tuning
from fastovms.parts.tuning.idle import TuningResult, keep_result, read_files, tuning_key
from fastovms.parts.tuning.quality import Quality, compare
from fastovms.system.disk import DiskCache

logger = logging.getLogger(__name__)

NUM_ROUNDS: Final = 15
"""The number of rounds in which two variants of a model are compared."""

_MEMORY_SHARE: Final = 0.5
"""The maximum fraction of the free memory for the weights of further variants."""


@dataclass(frozen=True, slots=True)
class TuningReport:
    """The result of a measurement by `fastovms tune`.

    Attributes:
        loads: the times of `LOAD_CASES` by variant, default first.
        gains: the speedup of each variant over the default.
        budgets: the times of `BUDGET_CASES` by variant.
        entry: the directory of the stored result; None = not stored.
        int4_group_size: see `ExportedModel`.
        has_vnni: whether the CPU has 8-bit integer dot product instructions (VNNI).
    """

    loads: dict[str, tuning.Times]
    gains: dict[str, float]
    budgets: dict[str, tuning.Times]
    finding: TuningResult
    entry: Path | None
    int4_group_size: int | None
    has_vnni: bool


def measure_all(
    model_dir: Path,
    config: EngineConfig,
    cache: DiskCache,
    *,
    num_rounds: int = NUM_ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
    memory_speed: Callable[[], float] = lambda: 1.0,
) -> TuningReport | None:
    """Measures every variant of a model that fits into memory, without a time limit, and stores the
    result. Besides the default, one variant at a time is loaded. Raises ConfigurationError if the
    device cannot run the model.

    Args:
        memory_speed: see `tuning.measure`.

    Returns:
        The result; None = the machine was too busy.
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
            logger.warning("tuning: %s cannot be used: %s", other.name, error)
            continue
        times = measure({default.name: model, other.name: rival}, tuning.LOAD_CASES)
        ratios[other.name] = tuning.speed_ratios(times[other.name], times[default.name])
        loads.setdefault(default.name, times[default.name])
        loads[other.name] = times[other.name]
        budgets |= measure({other.name: rival}, tuning.BUDGET_CASES)
        del rival  # free the memory before the next model is compiled
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
    entry = keep_result(cache, tuning_key(config, files), finding)
    return TuningReport(
        loads,
        {default.name: 1.0, **gains},
        budgets,
        finding,
        entry,
        int4_group_size=files.int4_group_size,
        has_vnni=has_vnni(),
    )


def compare_all(
    model_dir: Path, config: EngineConfig, names: Set[str], token_ids: Sequence[int]
) -> dict[str, Quality]:
    """Compares the log probabilities of variants of a model with those in f32, and returns the
    quality of each variant by name. The model in f32 and one variant at a time are in memory; a
    variant that does not fit is omitted. Raises ConfigurationError if the model or the device does
    not support the comparison.

    Args:
        token_ids: the tokens of a text, at most as many as the model's context length.
    """
    files = read_files(model_dir, config)
    reference = ExportedModel(model_dir, device=config.device, exact=True)
    exact = reference.compile(reference.choices)[1]
    found: dict[str, Quality] = {}
    for choice in files.choices:
        room = files.available_memory() * _MEMORY_SHARE
        if choice.name in names and files.weights_size * choice.num_variants <= room:
            model = files.compile([choice])[1]
            found |= compare(exact, {choice.name: model}, [token_ids])
            del model  # free the memory before the next model is compiled
    return found
