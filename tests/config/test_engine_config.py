"""Settings of the engine that follow from others."""

from __future__ import annotations

import pytest

from fastovms.config.engine_config import EngineConfig


@pytest.mark.parametrize(("given", "budget"), [(100, 100), (1, 1)])
def test_the_budget_of_a_step_is_what_the_operator_says(given: int, budget: int) -> None:
    assert EngineConfig(max_num_batched_tokens=given).token_budget == budget
    assert EngineConfig().token_budget > 0
