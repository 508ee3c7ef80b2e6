"""The parts of every report: the machine, a table, and medians with ratios."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("openvino", "openvino-genai", "uvloop")


def machine() -> str:
    """Returns a line with the processor, the cores of this process, and the load average."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    packages = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, Python {platform.python_version()}, {packages}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns an aligned Markdown table. Floats have three significant digits."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Returns `median (min to max)` of the ratios of paired measurements."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
