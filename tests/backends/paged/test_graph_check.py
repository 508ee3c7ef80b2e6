"""A model is compared with what is made of it once, and refused where they differ."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastovms.backends.paged.graph_check import MAX_DIFFERENCE, check_graph
from fastovms.disk_cache import DiskCache
from fastovms.errors import ConfigurationError


@pytest.fixture
def files(tmp_path: Path) -> Any:
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (model_dir / name).write_bytes(b"1")
    return SimpleNamespace(model_dir=model_dir, weights_size=1000)


class Difference:
    """Finds the same one each time.

    Attributes:
        count: how often it was asked for.
    """

    def __init__(self, value: float) -> None:
        self.value = value
        self.count = 0

    def __call__(self, files: Any) -> float:
        self.count += 1
        return self.value


@pytest.mark.parametrize("value", [0.0, MAX_DIFFERENCE])
def test_a_small_difference_is_found_once(files: Any, tmp_path: Path, value: float) -> None:
    difference, cache = Difference(value), DiskCache(tmp_path / "cache")
    check_graph(files, cache, difference)
    check_graph(files, cache, difference)
    assert difference.count == 1
    (files.model_dir / "openvino_model.bin").write_bytes(b"another")
    check_graph(files, cache, difference)
    assert difference.count == 2


@pytest.mark.parametrize("value", [2 * MAX_DIFFERENCE, float("nan"), float("inf")])
def test_a_large_difference_is_refused_at_every_start(
    files: Any, tmp_path: Path, value: float
) -> None:
    difference, cache = Difference(value), DiskCache(tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="leaves out part of its graph") as refusal:
            check_graph(files, cache, difference)
        assert str(files.model_dir) in str(refusal.value)
    assert difference.count == 1


def test_without_a_cache_it_is_found_each_time(files: Any) -> None:
    difference = Difference(0.0)
    for _ in range(2):
        check_graph(files, DiskCache(None), difference)
    assert difference.count == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '"0"', "null"])
def test_what_is_kept_may_be_broken(files: Any, tmp_path: Path, content: str) -> None:
    difference, cache = Difference(0.0), DiskCache(tmp_path / "cache")
    check_graph(files, cache, difference)
    (kept,) = (tmp_path / "cache").rglob("difference.json")
    kept.write_text(content)
    check_graph(files, cache, difference)
    check_graph(files, cache, difference)
    assert difference.count == 2


def test_a_model_that_cannot_be_computed_is_a_configuration_error(files: Any) -> None:
    def difference(files: Any) -> float:
        raise RuntimeError("Exception from a.cpp:3:\nno such kernel")

    with pytest.raises(ConfigurationError, match="cannot be computed: no such kernel"):
        check_graph(files, DiskCache(None), difference)


def test_without_memory_it_is_left_out_and_said(
    files: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    difference, cache = Difference(1.0), DiskCache(tmp_path / "cache")
    check_graph(files, cache, difference, available=lambda: 2499)
    assert difference.count == 0
    assert "too little memory" in caplog.text
    with pytest.raises(ConfigurationError):
        check_graph(files, cache, difference, available=lambda: 2500)
    assert difference.count == 1
