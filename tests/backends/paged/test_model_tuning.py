"""What a first start measures, what the next one finds, and what is done without either."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fastovms.backends.paged import model_tuning as tuning
from fastovms.backends.paged.model_tuning import TuningResult, load_tuned, measure_all
from fastovms.config import EngineConfig
from fastovms.disk_cache import DiskCache
from fastovms.engine.model.compilation import EXACT_WEIGHTS_SIZE, Precisions
from fastovms.errors import ConfigurationError
from tests.engine.model.test_tuning import Clock, Cost, TimedModel, linear

CONFIG = EngineConfig()


class Machine:
    """Stands in for files and a device: compiling and computing move its clock.

    Attributes:
        compiled: names, in the order in which they were compiled.
    """

    def __init__(self, costs: dict[str, Cost], *, compile_seconds: float = 0.5) -> None:
        self.clock = Clock()
        self.costs = costs
        self.compiled: list[str] = []
        self.refused: set[str] = set()
        self.memory = 100 * EXACT_WEIGHTS_SIZE
        self.weights_size = 2 * EXACT_WEIGHTS_SIZE
        self.compile_seconds = compile_seconds

    def files(self, *args: object, **kwargs: object) -> MachineFiles:
        return MachineFiles(self)

    def start(self, cache: DiskCache, config: EngineConfig = CONFIG) -> tuple[str, int | None]:
        del self.compiled[:]
        files = tuning.read_files(Path("model"), config)
        model, token_budget = load_tuned(files, config, cache, self.clock)
        assert isinstance(model, NamedModel)
        return model.name, token_budget


class NamedModel(TimedModel):
    name = ""


class MachineFiles:
    device = "CPU"
    model_dir = Path("model")

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.weights_size = machine.weights_size
        self.choices = [Precisions(name, {}) for name in machine.costs]

    def available_memory(self) -> int:
        return self._machine.memory

    def compile(self, choices: Sequence[Precisions]) -> tuple[Precisions, NamedModel]:
        for choice in choices:
            self._machine.clock.now += self._machine.compile_seconds
            self._machine.compiled.append(choice.name)
            if choice.name not in self._machine.refused:
                model = NamedModel(self._machine.clock, self._machine.costs[choice.name])
                model.name = choice.name
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


def test_the_first_start_measures_and_the_next_one_knows(
    machine: Machine, cache: DiskCache
) -> None:
    assert machine.start(cache) == ("b", 512)
    assert machine.compiled == ["a", "b", "c"]
    assert machine.clock.now < tuning.MAX_SECONDS + 3 * machine.compile_seconds
    assert machine.start(cache) == ("b", 512)
    assert machine.compiled == ["b"]


def test_another_machine_or_model_measures_anew(machine: Machine, cache: DiskCache) -> None:
    machine.start(cache)
    machine.start(cache, EngineConfig(plugin_config={"INFERENCE_NUM_THREADS": 1}))
    assert machine.compiled == ["a", "b", "c"]


@pytest.mark.parametrize("why", ["off", "no cache", "small", "slow to compile", "slow to compute"])
def test_without_a_measurement_the_default_stays(
    machine: Machine, cache: DiskCache, why: str
) -> None:
    config = CONFIG
    if why == "off":
        config = EngineConfig(tune=False)
    elif why == "no cache":
        cache = DiskCache(None)
    elif why == "small":
        machine.weights_size = EXACT_WEIGHTS_SIZE
    elif why == "slow to compile":
        machine.compile_seconds = 20
    else:
        machine.costs = {name: linear(3, 0.01) for name in machine.costs}
    budgets = {"slow to compile": 512, "slow to compute": 256}  # the first needs no compilation
    assert machine.start(cache, config) == ("a", budgets.get(why))
    assert machine.compiled[0] == "a"
    assert machine.start(cache, config) == ("a", budgets.get(why))
    assert machine.compiled == ["a"], "not even what was found out in vain is tried again"


def test_memory_for_further_weights_is_not_taken_from_others(
    machine: Machine, cache: DiskCache
) -> None:
    machine.memory = 3 * EXACT_WEIGHTS_SIZE
    assert machine.start(cache)[0] == "a"
    assert machine.compiled == ["a"]


def test_what_the_device_refuses_is_left_out(machine: Machine, cache: DiskCache) -> None:
    machine.refused = {"a", "b"}
    assert machine.start(cache)[0] == "c"
    machine.refused = {"a", "c"}
    assert machine.start(cache)[0] == "b", "what is kept is refused now"


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
def test_a_broken_entry_is_measured_anew(
    machine: Machine, cache: DiskCache, tmp_path: Path, content: str
) -> None:
    machine.start(cache)
    (entry,) = tmp_path.iterdir()
    (entry / "choice.json").write_text(content)
    assert machine.start(cache) == ("b", 512)
    assert machine.compiled == ["a", "b", "c"]
    assert machine.start(cache) == ("b", 512)
    assert machine.compiled == ["b"]


def test_measuring_by_hand_takes_its_time_and_is_kept(machine: Machine, cache: DiskCache) -> None:
    machine.costs = {"a": linear(3, 0.01), "b": linear(1, 0.01)}
    machine.compile_seconds = 20
    machine.start(cache)
    report = measure_all(Path("model"), CONFIG, cache, num_rounds=5, clock=machine.clock)
    assert report.finding == TuningResult("b", 512)
    assert list(report.loads) == list(report.budgets) == ["a", "b"]
    assert machine.start(cache) == ("b", 512)
    machine.costs["b"] = linear(9, 0.01)
    report = measure_all(Path("model"), CONFIG, cache, num_rounds=5, clock=machine.clock)
    assert report.finding == TuningResult("a", 512)
    assert machine.start(cache) == ("a", 512)


def test_what_was_measured_by_hand_of_a_small_model_is_known(
    machine: Machine, cache: DiskCache
) -> None:
    machine.weights_size = EXACT_WEIGHTS_SIZE
    report = measure_all(Path("model"), CONFIG, cache, num_rounds=5, clock=machine.clock)
    assert report.finding == TuningResult("b", 512)
    assert machine.start(cache) == ("b", 512)
    assert machine.start(cache, EngineConfig(tune=False)) == ("a", None)
