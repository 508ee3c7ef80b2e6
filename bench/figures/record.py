"""Writes measured figures into the page that shows them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.common.report import machine
from bench.figures.figure import Figure, figures_table


def record(
    page: Path, name: str, *, line: str, seconds: float, load: float, figures: Sequence[Figure]
) -> None:
    """Replaces the text between the comments `figures of NAME` and `end` of the page.

    Args:
        line: the command line that measured the figures.
        seconds: the duration of the measurement.
        load: the machine's load average before it.

    Raises:
        SystemExit: the page lacks these comments.
    """
    text = page.read_text(encoding="utf-8")
    place = re.compile(rf"(<!-- figures of {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    block = (
        f"\n`{line}`, {datetime.now(UTC):%Y-%m-%d}, {seconds / 60:.1f} minutes, {machine()}, "
        f"load {load:.1f} before it:\n\n{figures_table(figures)}\n\n"
    )
    text, count = place.subn(lambda found: found[1] + block + found[2], text)
    if count != 1:
        raise SystemExit(f"{page} has no place, or more than one, for the figures of {name}")
    page.write_text(text, encoding="utf-8")
