"""When a measurement begins, stops and goes on, over a process that says what is done to it."""

from __future__ import annotations

import queue
import time
from pathlib import Path

import pytest

from fastovms.backends.engine_thread.working_engines import WorkingEngines
from fastovms.backends.paged.idle_tuning import IdleTuning, Measurement
from fastovms.config.engine_config import EngineConfig
from fastovms.system.disk_cache import DiskCache

DELAY = 0.02
FIRST, SECOND = (
    Measurement(Path(name), EngineConfig(), DiskCache(None)) for name in ("first", "second")
)


class FakeProcess:
    """Attributes:
    told: what was done to all processes, in order.
    """

    def __init__(self, measurement: Measurement, told: queue.SimpleQueue[str]) -> None:
        self.told = told
        self._found: queue.SimpleQueue[str] = queue.SimpleQueue()
        told.put(f"start {measurement.model_dir}")

    def pause(self) -> None:
        self.told.put("pause")

    def resume(self) -> None:
        self.told.put("resume")

    def kill(self) -> None:
        self.told.put("kill")
        self.end()

    def end(self) -> None:
        self._found.put("found")

    def result(self) -> str:
        return self._found.get()


class Server:
    def __init__(self) -> None:
        self.told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.processes: list[FakeProcess] = []
        self.engines = WorkingEngines()
        self.tuning = IdleTuning(self.engines, self._start, DELAY)

    def _start(self, measurement: Measurement) -> FakeProcess:
        self.processes.append(FakeProcess(measurement, self.told))
        return self.processes[-1]

    def next(self) -> str:
        return self.told.get(timeout=10)


@pytest.fixture
def server() -> Server:
    return Server()


def test_measuring_is_for_when_all_engines_rest(server: Server) -> None:
    for _ in range(2):
        server.engines.begin()
    server.tuning.add(FIRST)
    server.engines.end()
    time.sleep(3 * DELAY)
    assert server.told.empty()
    server.engines.end()
    assert server.next() == "start first"
    server.engines.begin()
    assert server.told.get_nowait() == "pause", "at once"
    time.sleep(3 * DELAY)
    assert server.told.empty()
    with server.engines.rest():
        assert server.next() == "resume"
    assert server.told.get_nowait() == "pause"


def test_a_short_rest_is_none(server: Server) -> None:
    server.engines.begin()
    server.tuning.add(FIRST)
    for _ in range(50):
        with server.engines.rest():
            pass
    assert server.told.empty()


def test_one_model_after_another_is_measured(server: Server) -> None:
    server.tuning.add(FIRST)
    server.tuning.add(SECOND)
    assert server.next() == "start first"
    server.processes[0].end()
    assert server.next() == "start second"
    server.processes[1].end()
    while server.tuning.is_measuring:
        time.sleep(DELAY)
    server.engines.begin()
    assert server.told.empty(), "there is nobody left to pause"
    server.engines.end()
    server.tuning.add(FIRST)
    assert server.next() == "start first"


def test_models_that_are_gone_are_not_measured(server: Server) -> None:
    server.tuning.add(FIRST)
    server.tuning.add(SECOND)
    assert server.next() == "start first"
    server.tuning.drop(SECOND)
    server.tuning.drop(SECOND)
    server.tuning.drop(FIRST)
    assert server.next() == "kill"
    while server.tuning.is_measuring:
        time.sleep(DELAY)
    assert server.told.empty()


def test_what_cannot_be_started_is_left(caplog: pytest.LogCaptureFixture) -> None:
    def fail(measurement: Measurement) -> FakeProcess:
        raise OSError("no more processes")

    tuning = IdleTuning(WorkingEngines(), fail, DELAY)
    tuning.add(FIRST)
    while tuning.is_measuring:
        time.sleep(DELAY)
    assert "no more processes" in caplog.text
