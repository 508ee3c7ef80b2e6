"""Tests of `fastovms/parts/several_models/model_pool.py`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from fastovms.api.served import KnownModel, ModelState, ServedModel, ServedModels
from fastovms.errors import BackendUnavailable, ConfigurationError
from fastovms.http.messages import Caller
from fastovms.parts.several_models.model_pool import (
    ModelCollector,
    ModelPlan,
    ModelPool,
    unload_outcome,
    unloads,
)
from fastovms.parts.several_models.residency import Residency
from fastovms.server_config import ModelConfig, ModelResidency, ResidencyConfig
from fastovms.telemetry.metrics import FinishedRequest, GenerationMetrics, render
from tests.fakes import ByteTokenizer, FakeBackend, make_request, model_info

# The values of `keep_alive`.


@pytest.mark.parametrize(
    ("given", "leaves"),
    [
        (None, False),
        (0, True),
        (0.0, True),
        (-1, False),
        (300, False),
        ("0", True),
        ("0s", True),
        ("0m0s", True),
        ("5m", False),
        ("1h30m", False),
        ("1.5h", False),
        ("-1m", False),
        ("-1", False),
        ("500\u00b5s", False),
    ],
)
def test_keep_alive_of_zero_alone_unloads_the_model(
    given: str | float | None, leaves: bool
) -> None:
    assert unloads(given) is leaves


class Holder:
    def __init__(self, loads_on_demand: bool) -> None:
        self.loads_on_demand = loads_on_demand
        self.dismissed: list[str] = []

    def is_permanent(self, name: str) -> bool:
        return False

    def dismiss(self, name: str) -> None:
        self.dismissed.append(name)


@pytest.mark.parametrize(
    ("keep_alive", "loads_on_demand", "is_admin", "reason"),
    [
        (0, True, True, None),
        (0, True, False, "only an operator may unload it"),
        (0, False, True, "does not load models on demand"),
        (0, None, True, "does not load models on demand"),
        ("5m", False, True, None),
        (None, True, True, None),
    ],
)
def test_keep_alive_unloads_for_admins_on_demand(
    keep_alive, loads_on_demand, is_admin, reason
) -> None:
    models, request = ServedModels(), make_request("POST", "/api/chat")
    request.caller = Caller(tenant="", is_admin=is_admin)
    holder = None if loads_on_demand is None else Holder(loads_on_demand)
    models.holder = holder
    with unload_outcome(keep_alive, request, KnownModel("m"), models) as leaving:
        assert holder is None or not holder.dismissed
    assert leaving.is_wanted is (keep_alive == 0)
    assert leaving.happens is (leaving.is_wanted and reason is None)
    assert (reason is None) is (leaving.warnings == ())
    assert reason is None or reason in leaving.warnings[0]
    assert holder is None or holder.dismissed == ["m"] * leaving.happens


# Models are loaded and unloaded on demand, with a fake loader.


class Loader:
    """Loads at once unless a test makes it wait or fail."""

    def __init__(self) -> None:
        self.moves: list[str] = []
        self.error: Exception | None = None
        self.go = asyncio.Event()
        self.go.set()
        self.warm = asyncio.Event()
        self.warm.set()
        self.failure: str | None = None
        self.may_reclaim = asyncio.Event()
        self.may_reclaim.set()

    async def load(self, config: ModelConfig, num_loaded: int) -> ServedModels:
        self.moves.append(f"load {config.name} beside {num_loaded}")
        await self.go.wait()
        if self.error is not None:
            raise self.error
        if "broken" in config.names:
            raise ConfigurationError("it is broken")
        backend = FakeBackend(lambda request, index: b"a", model_info(name=config.name))
        backend.warm = self.warm
        backend.failure = self.failure
        metrics = GenerationMetrics(config.name, backend.stats)
        model = ServedModel(backend, ByteTokenizer(), metrics, aliases=config.names[1:])
        return ServedModels([model], close=lambda: self.moves.append(f"close {config.name}"))

    async def reclaim(self) -> None:
        await self.may_reclaim.wait()
        self.moves.append("reclaim")

    async def reach(self, num_moves: int) -> None:
        """Returns when the given number of moves have begun."""
        while len(self.moves) < num_moves:  # noqa: ASYNC110
            await asyncio.sleep(0)


def plan(name: str, *aliases: str) -> ModelPlan:
    config = ModelConfig(Path(name), (name, *aliases))
    return ModelPlan(config, KnownModel(name, aliases), 1)


class Pool(ModelPool):
    """A pool with its loader and its clock.

    Attributes:
        now: the offset of the clock from the loop's time in seconds.
    """

    def __init__(self, *plans: ModelPlan, wait_timeout: float = 20.0, **config: float) -> None:
        self.models, self.loader, self.now = ServedModels(), Loader(), 0.0
        loop = asyncio.get_running_loop()
        super().__init__(
            self.models,
            Residency(ResidencyConfig(**config)),  # type: ignore[arg-type]
            self.loader,
            clock=lambda: loop.time() + self.now,
            wait_timeout=wait_timeout,
        )
        self.start(plans)

    async def use(self, name: str) -> None:
        async with asyncio.timeout(60):
            (await self.acquire(name))()

    def state(self, name: str) -> ModelState:
        known = self.models.get(name)
        assert known is not None
        return known.state


async def test_the_adapters_of_a_configuration_are_known() -> None:
    def with_adapter(name: str) -> ModelPlan:
        given = plan("a")
        engine = replace(given.config.engine, lora_modules={name: Path(name)})
        return given._replace(config=replace(given.config, engine=engine))

    pool = Pool(with_adapter("one"), max_loaded_models=1)
    assert [known.name for known in pool.models.named] == ["a", "one"]
    pool.apply([with_adapter("two")])
    assert [known.name for known in pool.models.named] == ["a", "two"]


async def test_a_model_is_loaded_for_all_who_wait_and_makes_room_for_another() -> None:
    pool = Pool(plan("a", "alias"), plan("b"), max_loaded_models=1)
    assert pool.state("alias") is ModelState.UNLOADED
    assert pool.try_acquire("a") is None
    async with asyncio.timeout(60):
        held = await asyncio.gather(*(pool.acquire("a") for _ in range(3)))
    assert pool.loader.moves == ["load a beside 0"]
    assert pool.state("a") is ModelState.AVAILABLE
    other = asyncio.ensure_future(pool.use("b"))
    await asyncio.sleep(0.01)
    assert not other.done()
    [model] = pool.models
    again = model.hold()  # a background response outlives its request
    for release in held:
        release()
    await asyncio.sleep(0.01)
    assert not other.done()
    again()
    await other
    assert pool.loader.moves[1:] == ["close a", "reclaim", "load b beside 0"]
    assert pool.state("a") is ModelState.UNLOADED
    await pool.close()


async def test_a_client_that_leaves_waits_no_longer() -> None:
    pool = Pool(plan("a"), plan("b"), max_loaded_models=1)
    held = await pool.acquire("a")
    gone = asyncio.ensure_future(pool.acquire("b"))
    await asyncio.sleep(0.01)
    assert pool.num_waiting() == {"a": 0, "b": 1}
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert pool.num_waiting() == {"a": 0, "b": 0}
    held()
    await asyncio.sleep(0.01)
    assert pool.loader.moves == ["load a beside 0"]
    await pool.close()


async def test_client_cancelled_as_its_model_is_loaded_holds_no_model() -> None:
    pool = Pool(plan("a"), plan("b"), max_loaded_models=1)
    gone = asyncio.ensure_future(pool.acquire("a"))
    await asyncio.sleep(0)
    while not (handed := pool.state("a") is ModelState.AVAILABLE or gone.done()):  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert handed
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    if not gone.cancelled():
        gone.result()()
    await pool.use("b")  # otherwise `a` could not be unloaded
    await pool.close()


async def test_failed_load_has_a_reason_and_a_pause() -> None:
    pool = Pool(plan("a"), max_loaded_models=1)
    pool.loader.error = ConfigurationError("a file is broken")
    for _ in range(3):
        with pytest.raises(BackendUnavailable, match="model a could not be loaded: a file is") as e:
            await pool.use("a")
    assert e.value.retry_after > 1
    assert len(pool.loader.moves) == 1
    assert pool.state("a") is ModelState.FAILED
    pool.now, pool.loader.error = 3.0, ValueError("odd")
    with pytest.raises(BackendUnavailable, match="odd"):
        await pool.use("a")
    pool.loader.error = None
    await pool.load("a")  # an operator does not wait
    assert pool.state("a") is ModelState.AVAILABLE
    await pool.close()


async def test_waiting_beyond_the_timeout_is_unavailable() -> None:
    pool = Pool(plan("a"), wait_timeout=0.01, max_loaded_models=1)
    pool.loader.go.clear()
    with pytest.raises(BackendUnavailable, match=r"not be loaded within 0.01 s"):
        await pool.acquire("a")
    waiting = asyncio.ensure_future(pool.acquire("a"))
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(BackendUnavailable):
        await waiting


async def test_whoever_unloads_a_model_that_is_leaving_waits_until_it_is_out_of_memory() -> None:
    pool = Pool(plan("a"))
    await pool.use("a")
    pool.loader.may_reclaim.clear()
    orders = [asyncio.ensure_future(pool.unload("a"))]
    while pool.state("a") is not ModelState.UNLOADING:  # noqa: ASYNC110
        await asyncio.sleep(0)
    orders.append(asyncio.ensure_future(pool.unload("a")))
    done, _ = await asyncio.wait(orders, timeout=0.02)
    assert not done
    pool.loader.may_reclaim.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*orders)
    assert pool.state("a") is ModelState.UNLOADED
    await pool.close()


async def test_unloading_a_model_that_fails_to_load_ends_at_once() -> None:
    pool = Pool(plan("a"), max_loaded_models=1)
    pool.loader.go.clear()
    pool.loader.error = ConfigurationError("a file is broken")
    waiting = asyncio.ensure_future(pool.acquire("a"))
    while pool.state("a") is not ModelState.LOADING:  # noqa: ASYNC110
        await asyncio.sleep(0)
    order = asyncio.ensure_future(pool.unload("a"))
    await asyncio.sleep(0)
    pool.loader.go.set()
    async with asyncio.timeout(60):
        await order
        with pytest.raises(BackendUnavailable, match="a file is broken"):
            await waiting
    assert pool.state("a") is ModelState.FAILED
    await pool.close()


async def test_operators_unload_and_idle_models_leave() -> None:
    pool = Pool(plan("a"), idle_unload=0.02)
    await pool.use("a")
    while pool.state("a") is not ModelState.UNLOADED:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    held = await pool.acquire("a")
    leaving = asyncio.ensure_future(pool.unload("a"))
    await asyncio.sleep(0.005)
    assert pool.try_acquire("a") is None
    held()
    async with asyncio.timeout(60):
        await leaving
        await pool.unload("a")  # no model can be unloaded
    assert pool.state("a") is ModelState.UNLOADED
    assert pool.loads_on_demand
    held = await pool.acquire("a")
    pool.dismiss("a")
    held()
    while pool.state("a") is not ModelState.UNLOADED:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await pool.close()


async def test_permanent_models_are_loaded_before_any_request() -> None:
    def permanent(name: str) -> ModelPlan:
        given = plan(name)
        policy = ModelResidency(group="permanent")
        return given._replace(config=replace(given.config, residency=policy))

    pool = Pool(permanent("a"), plan("b"), max_loaded_models=1)
    await pool.loader.reach(1)
    await pool.use("b")
    assert [pool.state(name) for name in "ab"] == [ModelState.AVAILABLE] * 2
    [load] = pool.apply([permanent("a"), plan("b"), permanent("c"), plan("d")]).loads
    async with asyncio.timeout(60):
        await load
    assert pool.state("c") is ModelState.AVAILABLE
    assert pool.state("d") is ModelState.UNLOADED
    await pool.close()


async def test_a_list_that_changes() -> None:
    pool = Pool(plan("a"), plan("b"))
    await asyncio.gather(pool.use("a"), pool.use("b"))
    held = await pool.acquire("b")
    assert not pool.apply([plan("a"), plan("b")]).is_any
    pool.loader.moves.clear()
    changed = plan("b", "new")
    changes = pool.apply([plan("c"), changed])
    assert changes.is_any
    assert [model.name for model in pool.models.known] == ["c", "b"]
    assert pool.models.get("a") is None
    assert pool.models.get("new") is pool.models.get("b")
    with pytest.raises(BackendUnavailable, match="no longer served"):
        await pool.acquire("a")
    held()
    async with asyncio.timeout(60):
        await asyncio.wait(changes.loads)
    moves = sorted(move.partition(" beside")[0] for move in pool.loader.moves)
    assert moves == ["close a", "close b", "load b", "load c", "reclaim", "reclaim"]
    assert pool.apply([changed]).is_any  # `c` is unloaded
    await pool.use("b")
    await pool.close()


async def test_a_model_that_is_removed_as_its_load_begins_holds_up_no_other() -> None:
    pool = Pool(plan("a"), plan("b"), max_loaded_models=1)
    request = asyncio.ensure_future(pool.acquire("a"))
    await asyncio.sleep(0)  # the load was chosen and has not begun
    pool.apply([plan("b")])
    with pytest.raises(BackendUnavailable, match="no longer served"):
        await request
    await pool.use("b")
    assert pool.loader.moves == ["load b beside 0"]
    await pool.close()


async def test_a_model_that_cannot_be_loaded_as_it_was_changed_is_loaded_as_it_was() -> None:
    pool = Pool(plan("a", "old"))
    await pool.use("a")
    for _ in range(2):
        [load] = pool.apply([plan("a", "broken")]).loads
        with pytest.raises(BackendUnavailable, match="it is broken"):
            await load
        await pool.use("a")
        assert list(pool.configs["a"].names) == ["a", "old"]
        assert pool.state("old") is ModelState.AVAILABLE
        assert pool.models.get("broken") is None
    assert pool.apply([plan("a")]).is_any
    await pool.use("a")
    pool.apply([])
    [load] = pool.apply([plan("a", "broken")]).loads  # another model with that name
    with pytest.raises(BackendUnavailable, match="it is broken"):
        await load
    assert pool.state("a") is ModelState.FAILED
    await pool.close()


@pytest.mark.parametrize("num_moves", [0, 4, 5])
async def test_a_list_that_changes_while_a_broken_one_is_applied_keeps_the_model(
    num_moves: int,
) -> None:
    """While a request uses the model, while the broken one is loaded, and while the former model is
    loaded again."""
    pool = Pool(plan("a"))
    held = await pool.acquire("a")
    pool.loader.go.clear()
    [first] = pool.apply([plan("a", "broken")]).loads
    if num_moves:
        held()
    if num_moves == 5:
        await pool.loader.reach(4)
        pool.loader.go.set()
        pool.loader.go.clear()
    await pool.loader.reach(num_moves)
    [second] = pool.apply([plan("a", "broken", "again")]).loads
    pool.loader.go.set()
    if not num_moves:
        held()
    async with asyncio.timeout(60):
        await asyncio.wait((first, second))
    for load in (first, second):
        with pytest.raises(BackendUnavailable, match="it is broken"):
            load.result()
    await pool.use("a")
    assert pool.configs["a"].names == ("a",)
    await pool.close()


async def test_corrected_settings_are_loaded_after_a_failed_load() -> None:
    pool = Pool(plan("a"))
    await pool.use("a")
    pool.loader.go.clear()
    [first] = pool.apply([plan("a", "broken")]).loads
    waiting = asyncio.ensure_future(pool.use("a"))
    await pool.loader.reach(4)
    [second] = pool.apply([plan("a", "mended")]).loads
    pool.loader.go.set()
    async with asyncio.timeout(60):
        await asyncio.gather(first, second, waiting)
    assert pool.configs["a"].names == ("a", "mended")
    await pool.close()


async def test_a_removed_model_is_watched_while_it_finishes() -> None:
    pool = Pool(plan("a"), plan("b"))
    held = await pool.acquire("a")
    await pool.use("b")
    pool.apply([plan("b")])
    assert [model.info.name for model in pool.models] == ["b", "a"]
    [_, leaving] = pool.models
    leaving.backend.fail("hangs")
    assert pool.models.failure == "hangs"
    held()
    async with asyncio.timeout(60):
        while [model.info.name for model in pool.models] != ["b"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert pool.models.failure is None
    await pool.close()


async def test_counters_go_on_when_a_model_is_back() -> None:
    pool = Pool(plan("a"), max_loaded_models=1)
    registry = CollectorRegistry()
    registry.register(ModelCollector(pool.models, pool))
    counts = []
    for _ in range(2):
        await pool.use("a")
        [model] = pool.models
        model.metrics.request_finished(FinishedRequest(1.0, ["stop"], 3, 4, 1, 16))
        await pool.unload("a")
        [metrics] = pool.models.metrics()
        counts.append(metrics.finished["stop"])
        assert metrics.request_params_n.count == counts[-1]
    assert counts == [1, 2]
    text = render(registry, "")[0].decode()
    assert 'fastovms_model_state{model_name="a",state="unloaded"} 1.0' in text
    assert 'fastovms_model_unloads_total{model_name="a"} 2.0' in text
    await pool.close()


async def test_a_model_is_handed_over_once_it_is_warm() -> None:
    pool = Pool(plan("a"), max_loaded_models=1)
    pool.loader.warm.clear()
    used = asyncio.ensure_future(pool.use("a"))
    await asyncio.sleep(0.01)
    assert not used.done()
    assert pool.state("a") is ModelState.LOADING
    pool.loader.warm.set()
    await used
    await pool.close()


async def test_a_model_that_cannot_warm_up_is_not_loaded() -> None:
    pool = Pool(plan("a"), max_loaded_models=1)
    pool.loader.failure = "no such instruction"
    with pytest.raises(BackendUnavailable, match="could not be loaded: no such instruction"):
        await pool.use("a")
    assert pool.state("a") is ModelState.FAILED
    assert not list(pool.models)
    await pool.close()


# Each model is in one state.


async def test_metrics_have_the_state_and_loads_of_each_model() -> None:
    pool = Pool(plan("a"), plan("b"), max_loaded_models=1)
    registry = CollectorRegistry()
    registry.register(ModelCollector(pool.models, pool))
    await pool.use("a")
    lines = render(registry, "")[0].decode().splitlines()
    of_models = {
        name: [line for line in lines if f'{{model_name="{name}",state=' in line] for name in "ab"
    }
    for name, state in (("a", "available"), ("b", "unloaded")):
        assert len(of_models[name]) == len(ModelState)
        [there] = [line for line in of_models[name] if line.endswith(" 1.0")]
        assert f'state="{state}"' in there
    assert 'fastovms_num_requests_waiting_for_model{model_name="b"} 0.0' in lines
    assert 'fastovms_model_loads_total{model_name="a"} 1.0' in lines
    await pool.close()
