"""Graphs that are written are those that are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.config.settings import ENGINE, FILES
from fastovms.encoding import Task
from fastovms.ovms.calculators import CALCULATORS
from fastovms.ovms.graph import read_graph
from fastovms.ovms.graph_texts import GRAPHS


@pytest.mark.parametrize("task", Task)
def test_a_graph_has_its_calculator_and_options(tmp_path: Path, task: Task) -> None:
    graph = GRAPHS[task]
    assert graph.calculator in CALCULATORS
    name = "device" if task is Task.TEXT_GENERATION else "target_device"
    text = graph.filled(f'models_path: "./"\n{name}: "GPU"')
    assert f"      {name}" in text, "options stand below each other"
    path = tmp_path / "graph.pbtxt"
    path.write_text(text)
    given = read_graph(path).settings.given
    assert (given[FILES.path], given[ENGINE.device]) == (tmp_path, "GPU")
    for setting, value in CALCULATORS[graph.calculator].implied.items():
        assert given[setting] == value
