"""A model is compared with what is made of it once, and refused where they differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fastovms.backends.model_files.graph_check import (
    MAX_DIFFERENCE,
    Comparison,
    NotComparable,
    check_graph,
)
from fastovms.errors import UnsupportedModel
from fastovms.system.disk_cache import DiskCache


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, ...]:
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    paths = tuple(model_dir / name for name in ("openvino_model.xml", "openvino_model.bin"))
    for path in paths:
        path.write_bytes(b"1")
    return paths


def comparison(
    files: tuple[Path, ...], difference: Callable[[], float], **changes: str
) -> Comparison:
    return Comparison(
        **{"kind": "graph", "subject": "somebody's transformation", **changes},
        files=files,
        difference=difference,
        weights_size=2**30,
    )


class Difference:
    """Finds the same one each time.

    Attributes:
        count: how often it was asked for.
    """

    def __init__(self, value: float) -> None:
        self.value = value
        self.count = 0

    def __call__(self) -> float:
        self.count += 1
        return self.value


@pytest.mark.parametrize("value", [0.0, MAX_DIFFERENCE])
def test_a_small_difference_is_found_once(
    files: tuple[Path, ...], tmp_path: Path, value: float
) -> None:
    difference, cache = Difference(value), DiskCache(tmp_path / "cache")
    check_graph(comparison(files, difference), cache)
    check_graph(comparison(files, difference), cache)
    assert difference.count == 1
    files[1].write_bytes(b"another")
    check_graph(comparison(files, difference), cache)
    assert difference.count == 2


@pytest.mark.parametrize("value", [2 * MAX_DIFFERENCE, float("nan"), float("inf")])
def test_a_large_difference_is_refused_at_every_start(
    files: tuple[Path, ...], tmp_path: Path, value: float
) -> None:
    difference, cache = Difference(value), DiskCache(tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(
            UnsupportedModel, match="somebody's transformation leaves out part"
        ) as refusal:
            check_graph(comparison(files, difference), cache)
        assert str(files[0].parent) in str(refusal.value)
    assert difference.count == 1


def test_without_a_cache_it_is_found_each_time(files: tuple[Path, ...]) -> None:
    difference = Difference(0.0)
    for _ in range(2):
        check_graph(comparison(files, difference), DiskCache(None))
    assert difference.count == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '"0"', "null"])
def test_what_is_kept_may_be_broken(files: tuple[Path, ...], tmp_path: Path, content: str) -> None:
    difference, cache = Difference(0.0), DiskCache(tmp_path / "cache")
    check_graph(comparison(files, difference), cache)
    (kept,) = (tmp_path / "cache").rglob("difference.json")
    kept.write_text(content)
    check_graph(comparison(files, difference), cache)
    check_graph(comparison(files, difference), cache)
    assert difference.count == 2


def test_a_model_that_cannot_be_computed_is_refused(files: tuple[Path, ...]) -> None:
    def difference() -> float:
        raise RuntimeError("Exception from a.cpp:3:\nno such kernel")

    with pytest.raises(UnsupportedModel, match="cannot be computed: no such kernel"):
        check_graph(comparison(files, difference), DiskCache(None))


def test_without_memory_it_is_left_out_and_said(
    files: tuple[Path, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    difference, cache = Difference(1.0), DiskCache(tmp_path / "cache")
    check_graph(comparison(files, difference), cache, available=lambda: 2**30)
    assert difference.count == 0
    assert "too little memory" in caplog.text
    with pytest.raises(UnsupportedModel):
        check_graph(comparison(files, difference), cache, available=lambda: 2 * 2**30)
    assert difference.count == 1


def test_what_cannot_be_compared_is_served_and_said(
    files: tuple[Path, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def difference() -> float:
        raise NotComparable("it has an input of another kind")

    cache = DiskCache(tmp_path / "cache")
    check_graph(comparison(files, difference), cache)
    assert "cannot be compared with the exported graph: it has an input" in caplog.text
    with pytest.raises(UnsupportedModel):
        check_graph(comparison(files, Difference(1.0)), cache)


@pytest.mark.parametrize("change", [{"kind": "pipeline"}, {"version": "2"}])
def test_answers_of_others_do_not_count(
    files: tuple[Path, ...], tmp_path: Path, change: dict[str, str]
) -> None:
    cache = DiskCache(tmp_path / "cache")
    check_graph(comparison(files, Difference(0.0)), cache)
    with pytest.raises(UnsupportedModel):
        check_graph(comparison(files, Difference(1.0), **change), cache)
