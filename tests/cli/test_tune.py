"""Tests of `fastovms tune` with a real model, and of the next start."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fastovms.cli.main import main
from fastovms.cli.tuning_report import render
from fastovms.parts.tuning.idle import TuningResult
from fastovms.parts.tuning.measurement import BUDGET_CASES, LOAD_CASES, MIN_ROUNDS
from fastovms.parts.tuning.quality import Quality
from fastovms.parts.tuning.ways import TuningReport, measure_all
from fastovms.server_config import DEMO_MODEL
from tests.encoder_models import encoder_dir


@pytest.fixture(autouse=True)
def steady_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every measured speed of the memory the same, for any load of the machine."""
    monkeypatch.setattr("fastovms.cli.tuning_report.MemoryReader", lambda: lambda: 1.0)


@pytest.fixture
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a measurement as short as possible."""
    measure = partial(measure_all, num_rounds=MIN_ROUNDS)
    monkeypatch.setattr("fastovms.cli.tuning_report.measure_all", measure)


@pytest.mark.slow
def test_tune_measures_a_model_and_keeps_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--cache-dir", str(tmp_path), "--kv-cache-precision", "f16"]
    assert main(["tune", *flags, str(DEMO_MODEL)]) == 0
    report = capsys.readouterr().out
    assert "f32, f16 cache" in report
    assert "Best: f32, f16 cache, the default" in report
    assert "--max-num-batched-tokens" in report
    agreement, difference = report.splitlines()[1].split()[-2:]
    assert 0.9 < float(agreement.rstrip("%")) / 100 <= 1
    assert 0 < float(difference) < 0.05  # a cache of f16 rounds something
    assert "serve will run the model so" in report
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["tuning"]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize(
    ("cache", "flags", "warning"),
    [
        (
            "{0}",
            ["--kv-cache-precision=f16", "--no-tune"],
            "serve will not go by it with --no-tune",
        ),
        ("", ["--kv-cache-precision=u8"], "could not be kept"),
    ],
    ids=["--no-tune", "no cache directory"],
)
def test_tune_warns_that_serve_will_not_use_its_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cache: str, flags: list[str], warning: str
) -> None:
    assert main(["tune", "--cache-dir", cache.format(tmp_path), *flags, str(DEMO_MODEL)]) == 0
    assert warning in capsys.readouterr().out


def test_tune_refuses_a_missing_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"fastovms: model directory {tmp_path}/none does not exist\n"


def test_tune_refuses_an_embedding_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(encoder_dir())]) == 2
    assert "generates no text, and needs no tuning" in capsys.readouterr().err


def report_of(name: str, **fields: Any) -> TuningReport:
    """Returns a report of one way to run a model."""
    report = TuningReport(
        loads={name: {case: [0.1] for case in LOAD_CASES}},
        gains={name: 1.0},
        budgets={name: {case: [0.1] for case in BUDGET_CASES}},
        finding=TuningResult(name, 256),
        entry=None,
        int4_group_size=None,
        has_vnni=True,
    )
    return replace(report, **fields)


@pytest.mark.parametrize(
    ("name", "int4_group_size", "has_vnni", "told"),
    [
        ("bf16, u8 cache", None, True, ["Of KV caches of f16, u8 and u4"]),
        ("f32, f16 cache", 64, True, ["Of KV caches of f16, u8 and u4", "in groups of 64"]),
        ("exact, f32 cache", 32, True, ["in groups of 32"]),
        ("exact, f32 cache", 128, True, []),
        ("exact, f32 cache", 128, False, ["has no VNNI"]),
        ("exact, f32 cache", None, False, []),
    ],
)
def test_report_names_caches_and_slow_exports(
    name: str, int4_group_size: int | None, has_vnni: bool, told: list[str]
) -> None:
    report = report_of(name, int4_group_size=int4_group_size, has_vnni=has_vnni)
    text = " ".join(render(report, {}, is_used=True).split())
    assert all(words in text for words in told)
    assert text.count("bench/results/performance.md") == len(told)


@pytest.mark.parametrize(
    ("qualities", "cells"),
    [
        ({}, ["-", "-"]),
        ({"f32, u8 cache": Quality(511, 0.0123, 0.987, 0.001, 1.002)}, ["98.7%", "0.012"]),
    ],
)
def test_report_shows_exactness_after_speed(
    qualities: dict[str, Quality], cells: list[str]
) -> None:
    report = report_of("f32, u8 cache")
    header, row = render(report, qualities, is_used=True).splitlines()[:2]
    assert header.endswith("speed  same token  difference")
    assert row.split()[-3:] == ["1.00", *cells]
