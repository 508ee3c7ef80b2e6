"""Settings that follow from others."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.config import EngineConfig, ModelConfig


@pytest.mark.parametrize(("given", "budget"), [(100, 100), (1, 1)])
def test_the_budget_of_a_step_is_what_the_operator_says(given: int, budget: int) -> None:
    assert EngineConfig(max_num_batched_tokens=given).token_budget == budget
    assert EngineConfig().token_budget > 0


def test_the_first_name_of_a_model_is_its_own() -> None:
    assert ModelConfig(Path("m"), ("a", "b")).name == "a"
