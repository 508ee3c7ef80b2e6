"""Tests the measurement of a real model by a real process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.models import write_model
from bench.random_models.shapes import SHAPES
from fastovms.config import EngineConfig
from fastovms.parts.tuning import process as tuning_process
from fastovms.parts.tuning.idle import Measurement, TuningProcess
from fastovms.parts.tuning.process import tune
from fastovms.system.disk import DiskCache


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_model(SHAPES["tiny"], directory)
    return directory


def test_tuning_stores_its_result(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_process, "MemorySpeed", lambda: lambda: 1.0)
    found = tune(Measurement("m", model_dir, EngineConfig(), DiskCache(tmp_path)))
    assert found.startswith("the next start will run it as f32, f32 cache, with ")
    (entry,) = tmp_path.iterdir()
    assert json.loads((entry / "choice.json").read_text())["name"] == "f32, f32 cache"


def test_tuning_process_reports_a_device_that_does_not_exist(
    model_dir: Path, tmp_path: Path
) -> None:
    config = EngineConfig(device="NPU.7")
    process = TuningProcess(Measurement("m", model_dir, config, DiskCache(tmp_path)))
    process.pause()
    process.resume()
    assert "NPU.7" in process.result()
    assert not list(tmp_path.iterdir())


def test_killed_process_reports_its_signal_and_stores_no_result(
    model_dir: Path, tmp_path: Path
) -> None:
    process = TuningProcess(Measurement("m", model_dir, EngineConfig(), DiskCache(tmp_path)))
    process.pause()
    process.kill()
    assert process.result() == "the process that measures was ended by SIGKILL"
    assert not list(tmp_path.iterdir())


def test_there_must_be_room_beside_the_server(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_process, "available_memory", lambda: 1000)
    found = tune(Measurement("m", model_dir, EngineConfig(), DiskCache(None)))
    assert found == "there is too little memory to measure it while the server runs"


STOPPED = """
import signal
from fastovms.parts.tuning.process import MemorySpeed

speed = MemorySpeed()
assert speed() > 0
signal.raise_signal(signal.SIGCONT)
assert speed() == 0
assert speed() > 0
"""


def test_memory_speed_is_zero_for_a_round_with_a_stopped_process() -> None:
    # In a separate process, because OpenVINO's CPU plugin gives the thread that creates it a signal
    # stack, and frees it in the thread that releases the plugin last.
    subprocess.run([sys.executable, "-c", STOPPED], check=True)
