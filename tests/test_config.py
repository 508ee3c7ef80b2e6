"""Settings that follow from others."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.config import EngineConfig, ModelConfig
from fastovms.http_config import HttpConfig


@pytest.mark.parametrize(("given", "budget"), [(100, 100), (1, 1)])
def test_the_budget_of_a_step_is_what_the_operator_says(given: int, budget: int) -> None:
    assert EngineConfig(max_num_batched_tokens=given).token_budget == budget
    assert EngineConfig().token_budget > 0


@pytest.mark.parametrize(
    ("max_body", "max_buffered", "largest"), [(10, 100, 10), (100, 100, 50), (100, 101, 50)]
)
def test_no_body_takes_more_than_half_of_what_all_may(
    max_body: int, max_buffered: int, largest: int
) -> None:
    config = HttpConfig(max_body=max_body, max_buffered_bodies=max_buffered)
    assert config.largest_body == largest


def test_the_first_name_of_a_model_is_its_own() -> None:
    assert ModelConfig(Path("m"), ("a", "b")).name == "a"
