"""The inputs of models with states, under the names of `StepInputs`."""

from __future__ import annotations

from pathlib import Path

import openvino as ov
import pytest

from fastovms.engine.model.graph.paging import read_paged_graph
from fastovms.engine.model.graph.state_inputs import is_state_table
from fastovms.engine.model.step_inputs import StepInputs

MODELS = Path(__file__).parents[3] / "models" / "architectures"


@pytest.mark.parametrize(("name", "has_states"), [("lfm2", True), ("qwen3", False)])
def test_inputs_have_the_names_that_steps_have(name: str, has_states: bool) -> None:
    graph = read_paged_graph(ov.Core(), MODELS / name)
    names = {port.get_any_name() for port in graph.model.inputs}
    tables = {name for name in names if is_state_table(name)}
    assert graph.has_states is has_states
    assert tables == ({"conv_state_table.0", "conv_state_table.1"} if has_states else set())
    caches = {name for name in names if name.startswith(("key_cache.", "value_cache."))}
    fed = names - caches - tables
    assert fed <= set(StepInputs._fields)
    assert "position_ids" in fed
    assert ("state_rows" in fed) is has_states
