"""Settings of models that follow from others."""

from __future__ import annotations

from pathlib import Path

from fastovms.config.model_config import ModelConfig


def test_the_first_name_of_a_model_is_its_own() -> None:
    assert ModelConfig(Path("m"), ("a", "b")).name == "a"
