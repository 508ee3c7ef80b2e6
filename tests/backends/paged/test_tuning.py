"""Tests of `fastovms/parts/tuning/idle.py` and `fastovms/parts/tuning/ways.py`."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from weakref import WeakSet

import pytest

from fastovms.backends.engine_thread import ActiveEngines
from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import EXACT_WEIGHTS_SIZE
from fastovms.engine.model.model import Precisions
from fastovms.errors import ConfigurationError
from fastovms.parts.tuning import idle as tuning
from fastovms.parts.tuning.idle import (
    IdleTuning,
    Measurement,
    TuningResult,
    load_tuned,
)
from fastovms.parts.tuning.ways import TuningReport, measure_all
from fastovms.system.disk import DiskCache
from tests.engine.model.test_tuning import Clock, Cost, TimedModel, linear

# The measurements, their reuse at the next start, and their absence.


CONFIG = EngineConfig()


class Machine:
    """Stands for files and a device: compiling and computing advance its clock.

    Attributes:
        compiled: the names in the order in which they were compiled.
    """

    def __init__(self, costs: dict[str, Cost], *, compile_seconds: float = 0.5) -> None:
        self.clock = Clock()
        self.costs = costs
        self.compiled: list[str] = []
        self.refused: set[str] = set()
        self.memory = 100 * EXACT_WEIGHTS_SIZE
        self.weights_size = 2 * EXACT_WEIGHTS_SIZE
        self.compile_seconds = compile_seconds
        self.in_memory: WeakSet[NamedModel] = WeakSet()
        self.most_in_memory = 0
        self.twice: set[str] = set()
        self.is_to_be_measured = False

    def files(self, *args: object, **kwargs: object) -> MachineFiles:
        return MachineFiles(self)

    def start(self, cache: DiskCache, config: EngineConfig = CONFIG) -> tuple[str, int | None]:
        del self.compiled[:]
        files = tuning.read_files(Path("model"), config)
        compile_now = partial(files.compile, single_rows_later=True)
        model, token_budget, self.is_to_be_measured = load_tuned(files, config, cache, compile_now)
        assert isinstance(model, NamedModel)
        return model.name, token_budget

    def measured(self, cache: DiskCache) -> TuningReport:
        del self.compiled[:]
        report = measure_all(Path("model"), CONFIG, cache, num_rounds=5, clock=self.clock)
        assert report is not None
        return report


class NamedModel(TimedModel):
    name = ""


class MachineFiles:
    device = "CPU"
    model_dir = Path("model")
    int4_group_size = 32

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.weights_size = machine.weights_size
        self.choices = [
            Precisions(name, {}, {} if name in machine.twice else None) for name in machine.costs
        ]

    def available_memory(self) -> int:
        return self._machine.memory

    def compile(
        self, choices: Sequence[Precisions], *, single_rows_later: bool = False
    ) -> tuple[Precisions, NamedModel]:
        for choice in choices:
            self._machine.clock.now += self._machine.compile_seconds
            self._machine.compiled.append(choice.name)
            if choice.name not in self._machine.refused:
                model = NamedModel(self._machine.clock, self._machine.costs[choice.name])
                model.name = choice.name
                self._machine.in_memory.add(model)
                self._machine.most_in_memory = max(
                    self._machine.most_in_memory, len(self._machine.in_memory)
                )
                return choice, model
        raise ConfigurationError("refused")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    costs = {"a": linear(0.02, 0.0001), "b": linear(0.01, 0.0001), "c": linear(0.03, 0.0001)}
    machine = Machine(costs)
    monkeypatch.setattr(tuning, "ExportedModel", machine.files)
    return machine


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path)


def test_a_start_goes_by_what_was_measured(machine: Machine, cache: DiskCache) -> None:
    assert machine.start(cache) == ("a", None)
    assert machine.is_to_be_measured
    assert machine.compiled == ["a"], "nobody waits for more"
    report = machine.measured(cache)
    assert report.finding == TuningResult("b", 512)
    assert list(report.loads) == list(report.budgets) == list(report.gains) == ["a", "b", "c"]
    assert report.gains["a"] == 1
    assert report.gains["b"] > 1.3 > 1 > report.gains["c"]
    assert machine.compiled == ["a", "b", "c"]
    assert machine.start(cache) == ("b", 512)
    assert not machine.is_to_be_measured
    assert machine.compiled == ["b"]
    other = EngineConfig(plugin_config={"INFERENCE_NUM_THREADS": 1})
    assert machine.start(cache, other) == ("a", None), "of which nothing was measured"
    machine.costs["b"] = linear(0.09, 0.0001)
    assert machine.measured(cache).finding == TuningResult("a", 512), "which replaces the earlier"
    assert machine.start(cache) == ("a", 512)


@pytest.mark.parametrize("why", ["off", "no cache", "small", "nothing to choose"])
def test_tuning_is_skipped_without_choice_or_cache(
    machine: Machine, cache: DiskCache, why: str
) -> None:
    config = CONFIG
    if why == "off":
        config = EngineConfig(tune=False)
    elif why == "no cache":
        cache = DiskCache(None)
    elif why == "small":
        machine.weights_size = EXACT_WEIGHTS_SIZE
    else:
        machine.costs = {"a": machine.costs["a"]}
        config = EngineConfig(max_num_batched_tokens=64)
    assert machine.start(cache, config) == ("a", None)
    assert not machine.is_to_be_measured


def test_only_two_ways_are_in_memory_at_a_time(machine: Machine, cache: DiskCache) -> None:
    machine.measured(cache)
    assert machine.most_in_memory == 2
    machine.memory = 3 * EXACT_WEIGHTS_SIZE
    report = machine.measured(cache)
    assert machine.compiled == ["a"], "that memory is others'"
    assert report.finding == TuningResult("a", 512)


@pytest.mark.parametrize(
    ("twice", "base", "expected"),
    [
        ({"b"}, 0.0185, "a"),
        ({"b"}, 0.016, "b"),
        (set(), 0.0185, "b"),
        ({"a"}, 0.021, "b"),
        ({"a"}, 0.024, "a"),
    ],
)
def test_weights_are_held_twice_for_a_tenth_of_the_speed(
    machine: Machine, cache: DiskCache, twice: set[str], base: float, expected: str
) -> None:
    machine.twice = twice
    machine.costs = {"a": linear(0.02, 0), "b": linear(base, 0)}
    assert machine.measured(cache).finding.name == expected


def test_refused_variants_are_left_out_of_tuning(machine: Machine, cache: DiskCache) -> None:
    machine.refused = {"a", "b"}
    assert machine.start(cache)[0] == "c"
    report = machine.measured(cache)
    assert list(report.loads) == ["c"]
    assert report.int4_group_size == MachineFiles.int4_group_size
    machine.refused = {"a", "c"}
    assert machine.start(cache)[0] == "b", "what is kept is refused now"


def test_busy_machine_gives_no_tuning_report(machine: Machine, cache: DiskCache) -> None:
    report = measure_all(
        Path("model"), CONFIG, cache, num_rounds=5, clock=machine.clock, memory_speed=lambda: 0.0
    )
    assert report is None
    assert machine.start(cache) == ("a", None)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"name": "b"}',
        '{"name": 1, "token_budget": 1}',
        '{"name": "d", "token_budget": 1}',
        '{"name": "b", "token_budget": 0}',
        "\x00",
    ],
)
def test_a_broken_entry_counts_as_none(
    machine: Machine, cache: DiskCache, tmp_path: Path, content: str
) -> None:
    machine.measured(cache)
    (entry,) = tmp_path.iterdir()
    (entry / "choice.json").write_text(content)
    assert machine.start(cache) == ("a", None)
    assert machine.is_to_be_measured
    machine.measured(cache)
    assert machine.start(cache) == ("b", 512)


def test_tuning_of_a_small_model_is_used(machine: Machine, cache: DiskCache) -> None:
    machine.weights_size = EXACT_WEIGHTS_SIZE
    machine.measured(cache)
    assert machine.start(cache) == ("b", 512)
    assert machine.start(cache, EngineConfig(tune=False)) == ("a", None)


# The start, the interruption and the resumption of a measurement, with a process that records its
# commands.


DELAY = 0.02
FIRST, SECOND = (
    Measurement(name, Path(name), EngineConfig(), DiskCache(None)) for name in ("first", "second")
)


class FakeProcess:
    """A process that records its commands.

    Attributes:
        told: the commands to all processes in order.
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
        self.engines = ActiveEngines()
        self.tuning = IdleTuning(self.engines, self._start, DELAY)

    def _start(self, measurement: Measurement) -> FakeProcess:
        self.processes.append(FakeProcess(measurement, self.told))
        return self.processes[-1]

    def next(self) -> str:
        return self.told.get(timeout=60)


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


def test_clients_that_wait_for_a_model_and_loads_are_work(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with server.tuning.occupied():
        server.tuning.add(FIRST)
        time.sleep(3 * DELAY)
        assert server.told.empty()
    assert server.next() == "start first"
    for _ in range(2):
        with server.tuning.occupied(), server.tuning.occupied():
            assert server.told.get_nowait() == "pause"
            assert server.told.get_nowait() == "pause"
            with server.engines.rest():  # another measurement remains
                time.sleep(3 * DELAY)
        while server.next() != "resume":
            pass
    interrupted = "tuning: measuring first is interrupted by requests"
    assert sum(line.startswith(interrupted) for line in caplog.messages) == 1


def test_short_rests_start_no_measurement(server: Server) -> None:
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


def test_models_that_are_gone_are_not_measured(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
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
    assert "tuning: result for first: interrupted, as the model leaves" in caplog.text


def test_tuning_process_that_cannot_start_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(measurement: Measurement) -> FakeProcess:
        raise OSError("no more processes")

    tuning = IdleTuning(ActiveEngines(), fail, DELAY)
    tuning.add(FIRST)
    while tuning.is_measuring:
        time.sleep(DELAY)
    assert "no more processes" in caplog.text
