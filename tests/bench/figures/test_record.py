from __future__ import annotations

from pathlib import Path

import pytest

from bench.figures.figure import Figure
from bench.figures.record import record


def test_figures_replace_those_of_the_last_time(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- figures of bytes -->\nstale\n<!-- end -->\nb\n<!-- end -->\n")
    record(page, "bytes", line="the command", seconds=60, load=7.25, figures=[Figure("answers", 3)])
    text = page.read_text()
    assert "stale" not in text
    assert "`the command`" in text
    assert "load 7.2 before it" in text
    assert "| answers" in text
    assert text.endswith("<!-- end -->\nb\n<!-- end -->\n")


def test_figures_without_a_place_are_a_fault(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="no place"):
        record(page, "bytes", line="", seconds=1, load=0, figures=[])
