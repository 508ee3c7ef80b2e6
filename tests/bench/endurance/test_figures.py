from __future__ import annotations

import math
from pathlib import Path

import pytest

from bench.endurance.__main__ import COMMANDS
from bench.endurance.figures import Figure, figures_table
from bench.endurance.record import PAGE, record

HELD = [
    (Figure("count", 0, at_most=0), True),
    (Figure("count", 1, at_most=0), False),
    (Figure("gap", 0.5, "s", at_most=0.5), True),
    (Figure("requests", 9_999, at_least=10_000), False),
    (Figure("memory", math.nan, "MiB", at_most=5), False),
    (Figure("seen only", 7.0), True),
]


@pytest.mark.parametrize(("figure", "holds"), HELD)
def test_a_figure_holds_within_its_limits(figure: Figure, holds: bool) -> None:
    assert figure.holds is holds


def test_patience_is_for_times_alone() -> None:
    figures = [
        Figure("gap", 0.3, "s", at_most=0.1),
        Figure("turn", 30, "ms", at_most=10),
        Figure("lost", 1, at_most=0),
        Figure("memory", 3, "MiB", at_most=1),
        Figure("seen", 0.2, "s"),
    ]
    held = [figure.with_patience(4).holds for figure in figures]
    assert held == [True, True, False, False, True]


def test_a_table_says_what_does_not_hold() -> None:
    lines = figures_table(
        [
            Figure("answers", 1_000_000, at_least=5),
            Figure("gap", 0.25, "s", at_most=0.1),
            Figure("peak", 12.5, "MiB"),
        ]
    ).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[2:] == [
        ["answers", "1,000,000", "at least 5", "yes"],
        ["gap", "0.25 s", "at most 0.1 s", "NO"],
        ["peak", "12.5 MiB", "-", "-"],
    ]


def test_figures_replace_those_of_the_last_time(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- figures of bytes -->\nstale\n<!-- end -->\nb\n<!-- end -->\n")
    record(page, "bytes", line="the command", seconds=60, figures=[Figure("answers", 3)])
    text = page.read_text()
    assert "stale" not in text
    assert "`the command`" in text
    assert "| answers" in text
    assert text.endswith("<!-- end -->\nb\n<!-- end -->\n")


def test_figures_without_a_place_are_a_fault(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="no place"):
        record(page, "bytes", line="", seconds=1, figures=[])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_place_on_the_page(name: str) -> None:
    assert f"<!-- figures of {name} -->\n" in PAGE.read_text(encoding="utf-8")
