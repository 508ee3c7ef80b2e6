"""Measures the fastest way to run a model on this machine, and formats the report of `fastovms
tune`."""

from __future__ import annotations

import inspect
import os
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from fastovms.app.catalog import ModelFinder
from fastovms.app.compiling import task_of
from fastovms.app.loading import check_models
from fastovms.config import EngineConfig
from fastovms.engine.model.devices import MemoryReader
from fastovms.engine.model.paging import MAX_ACTIVATION_GROUP
from fastovms.errors import ConfigurationError
from fastovms.gguf.model_directory import model_directory
from fastovms.params import SamplingParams, Task
from fastovms.parts.tuning.measurement import DECODES, PREFILLS, Times
from fastovms.parts.tuning.quality import Quality
from fastovms.parts.tuning.ways import TuningReport, compare_all, measure_all
from fastovms.server_config import ModelSource, RepositoryConfig
from fastovms.system.disk import DiskCache, cache_root
from fastovms.text.tokenizer import Tokenizer

_WIDTH: Final = 100

_NUM_COMPARED: Final = 512
"""The number of tokens of the text used to measure exactness."""

_LEGEND: Final = (
    "Tokens a second; speed is that of a mixed load. Exactness of prompts on a short English text, "
    "against --precision exact: how often the likeliest token is the same, and by how much log "
    "probabilities differ on average."
)


def measure(source: ModelSource, repository: RepositoryConfig) -> str:
    """Measures a model, for up to minutes, and returns the report to print. Raises
    ConfigurationError if the model is unknown, the device cannot run it, or the machine is too
    busy."""
    model = ModelFinder.of(repository, os.environ).find(source)
    check_models([model])
    if task_of(model) is not Task.TEXT_GENERATION:
        raise ConfigurationError(f"{model.path} generates no text, and needs no tuning")
    cache = DiskCache(cache_root(model.engine.cache_dir, os.environ))
    with TemporaryDirectory(prefix="fastovms-") as scratch:
        directory = model_directory(model.path, cache, Path(scratch))
        report = measure_all(directory, model.engine, cache, memory_speed=MemoryReader())
        if report is None:
            raise ConfigurationError("the machine is too busy for a measurement: try again later")
        token_ids = Tokenizer.load(directory).encode(_prose())[:_NUM_COMPARED]
        qualities = compare_all(directory, model.engine, report.loads.keys(), token_ids)
    return render(report, qualities, is_used=model.engine.tune)


def _prose() -> str:
    """Returns some hundred words of English: docstrings of this package."""
    return "\n".join(
        inspect.getdoc(each) or each.__name__ for each in (EngineConfig, SamplingParams)
    )


def render(report: TuningReport, qualities: Mapping[str, Quality], *, is_used: bool) -> str:
    """Returns a table with the medians of all rounds, and the conclusions.

    Args:
        qualities: the exactness of each way to run the model, if known.
        is_used: whether the flags let `serve` use the measurements.
    """
    header = [
        "",
        *(f"{number} at once" for number in DECODES),
        *(f"prompt, {budget} a step" for budget in PREFILLS),
        "speed",
        "same token",
        "difference",
    ]
    default = next(iter(report.loads))
    rows = [
        [
            name,
            *_cells(report.loads[name], report.budgets[name]),
            f"{report.gains[name]:.2f}",
            *_exactness(qualities.get(name)),
        ]
        for name in report.loads
    ]
    lines = [*_table([header, *rows]), "", *textwrap.wrap(_LEGEND, _WIDTH), ""]
    best = report.finding
    clearly = "" if best.name != default else ", the default: nothing is clearly faster"
    lines.append(f"Best: {best.name}{clearly}; --max-num-batched-tokens {best.token_budget}")
    if report.entry is None:
        lines.append("It could not be kept: there is no cache directory (--cache-dir).")
    elif not is_used:
        lines.append("serve will not go by it with --no-tune.")
    else:
        lines.append("serve will run the model so with these flags.")
    return "\n".join([*lines, *_advice(report)])


def _advice(report: TuningReport) -> list[str]:
    """Returns lines of advice that explain the measurements; see `bench/results/performance.md`."""
    paragraphs = []
    if not report.finding.name.endswith("f32 cache"):  # with an f32 cache there is only one choice
        paragraphs.append(
            "Of KV caches of f16, u8 and u4, f16 is the most exact: take it while it fits. u8 "
            "holds 1.7 times the tokens, and u4 2.9 times, but u4 changes texts: it is for memory "
            "alone (bench/results/performance.md, Long contexts)."
        )
    groups = report.int4_group_size
    if groups is not None and not report.has_vnni:
        paragraphs.append(
            "This processor has no VNNI, so int4 gains little, and int8 is more exact. On another "
            "machine a step of a 1.2B model took 71 ms in int8. In int4 it took 74 ms with a scale "
            "a row, 86 ms in symmetric groups of 128, and 108 ms in asymmetric groups of 128 "
            "(bench/results/performance.md, Which export is fastest)."
        )
    elif groups is not None and groups < MAX_ACTIVATION_GROUP:
        paragraphs.append(
            f"Most int4 weights of this export share scales in groups of {groups}. With a scale a "
            "row (optimum-cli's --group-size -1) they are less exact, and a step took 5.7 ms where "
            "it took 7.4 with groups of 64 (a 135M on another machine: "
            "bench/results/performance.md, Which export is fastest)."
        )
    return [line for text in paragraphs for line in ("", *textwrap.wrap(text, _WIDTH))]


def _exactness(quality: Quality | None) -> list[str]:
    if quality is None:
        return ["-", "-"]
    return [f"{quality.agreement:.1%}", f"{quality.mean_difference:.2g}"]


def _cells(loads: Times, budgets: Times) -> list[str]:
    decodes = [number / statistics.median(loads[case]) for number, case in DECODES.items()]
    prefills = [budget / statistics.median(budgets[case]) for budget, case in PREFILLS.items()]
    return [f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in (*decodes, *prefills)]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
