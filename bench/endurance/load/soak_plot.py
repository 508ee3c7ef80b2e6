"""Plots the measurements of a soak test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

if TYPE_CHECKING:
    from bench.endurance.load.soak import Sample


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Writes an SVG file with memory, descriptors, threads and latencies over the hours."""
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "soak"  # the same samples give the same file
    from matplotlib import pyplot

    hours = [sample.hour for sample in samples]
    figure, rows = pyplot.subplots(4, 1, sharex=True, figsize=(8, 8), layout="constrained")
    memory, descriptors, threads, latency = rows
    memory.plot(hours, [sample.memory for sample in samples])
    memory.set_ylabel("memory, MiB")
    descriptors.plot(hours, [sample.descriptors for sample in samples])
    descriptors.set_ylabel("descriptors")
    threads.plot(hours, [sample.threads for sample in samples])
    threads.set_ylabel("threads")
    for share, name in ((0.5, "median"), (0.99, "99th percentile")):
        latency.plot(hours, [_quantile(sample.latencies, share) for sample in samples], label=name)
    latency.set_ylabel("latency, s")
    latency.set_xlabel("hours of requests")
    latency.legend()
    for row in rows:
        row.set_ylim(bottom=0)
        row.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")
