"""Tiny models of different shapes, made once for all tests that run a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.models import write_model
from bench.random_models.shapes import SHAPES

TINY_SHAPES = tuple(name for name in SHAPES if name.startswith("tiny"))


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model directories by the names of `TINY_SHAPES`."""
    base = tmp_path_factory.mktemp("models")
    for name in TINY_SHAPES:
        write_model(SHAPES[name], base / name)
    return {name: base / name for name in TINY_SHAPES}
