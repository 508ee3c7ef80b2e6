"""The pool of served models: requests wait for a model to be loaded, and idle models are
unloaded."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fastovms.api.body import show
from fastovms.api.served import AnyServed, KnownModel, ModelState, Release, ServedModels
from fastovms.backend_stats import Gauge, Series
from fastovms.errors import (
    BackendUnavailable,
    ConfigurationError,
    InvalidField,
    Overloaded,
    ServerClosing,
    description_of,
)
from fastovms.fair_queue import Shares
from fastovms.http.messages import Request
from fastovms.parts.several_models.residency import Move, MoveKind, Residency
from fastovms.server_config import ModelConfig
from fastovms.telemetry.metrics import PREFIX, family

logger = logging.getLogger(__name__)


_DURATION: Final = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|\u00b5s|\u03bcs|ms|s|m|h))+")
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)")
_MAX_LENGTH: Final = 64

KeepAlive = str | int | float | None


class UnloadOutcome(NamedTuple):
    """Whether a request causes its model to be unloaded.

    Attributes:
        is_wanted: whether the client requests it.
        happens: whether the model is unloaded once it is idle.
        warnings: the reasons why the model stays loaded despite the client's request.
    """

    is_wanted: bool
    happens: bool
    warnings: Sequence[str]


@contextmanager
def unload_outcome(
    keep_alive: KeepAlive, request: Request, model: KnownModel, models: ServedModels
) -> Iterator[UnloadOutcome]:
    """While the context is open, applies `keep_alive`: a model that is loaded on demand is unloaded
    after the request if an operator asks for it. Yields the outcome. Raises InvalidField if
    `keep_alive` is not a duration."""
    is_wanted, holder = unloads(keep_alive), models.holder
    if not is_wanted:
        yield UnloadOutcome(False, False, ())
    elif holder is None or not holder.loads_on_demand:
        reason = "this server does not load models on demand"
        yield UnloadOutcome(True, False, _warnings(model, reason))
    elif not request.caller.is_admin:
        yield UnloadOutcome(True, False, _warnings(model, "only an operator may unload it"))
    elif holder.is_permanent(model.resident):
        yield UnloadOutcome(True, False, _warnings(model, "it is permanent"))
    else:
        try:
            yield UnloadOutcome(True, True, ())
        finally:
            holder.dismiss(model.resident)


def _warnings(model: KnownModel, reason: str) -> Sequence[str]:
    return [f"keep_alive changes nothing: {model.name} stays in memory, as {reason}"]


def unloads(keep_alive: KeepAlive) -> bool:
    """Returns whether the duration is zero, which unloads the model at once. The duration is a
    number of seconds, or in Go's notation such as "0s". Raises InvalidField if it is not a
    duration."""
    if not isinstance(keep_alive, str):
        return keep_alive == 0
    text = keep_alive.strip()
    is_duration = _DURATION.fullmatch(text) or _NUMBER.fullmatch(text)
    if len(text) > _MAX_LENGTH or not is_duration:
        raise InvalidField(
            'keep_alive must be a number of seconds or a duration such as "5m" or "1h30m", not '
            f"{show(keep_alive)}",
            param="keep_alive",
        )
    return not re.search(r"[1-9]", text)


class ModelWaiters:
    """The requests that wait for models. Each request has a future that is done once the model is
    acquired for it. For use on the event loop.

    Args:
        residency: receives the number of waiting requests.
        clock: returns monotonic seconds.
    """

    def __init__(self, residency: Residency, clock: Callable[[], float]) -> None:
        self._residency = residency
        self._clock = clock
        self._waiting: defaultdict[str, list[asyncio.Future[None]]] = defaultdict(list)
        self._orders: set[asyncio.Future[None]] = set()

    def num_waiting(self, name: str) -> int:
        """Returns the number of requests that wait for a model."""
        return len(self._waiting[name])

    @property
    def names(self) -> list[str]:
        """Returns the names of the models that requests wait for."""
        return [name for name, waiting in self._waiting.items() if waiting]

    def add(self, name: str, *, is_order: bool = False) -> asyncio.Future[None]:
        """Adds a waiting request and returns its future. `is_order` is whether the model must be
        loaded with its current configuration."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[name].append(waiting)
        if is_order:
            self._orders.add(waiting)
            waiting.add_done_callback(self._orders.discard)
        self._residency.wait(name, self._clock())
        return waiting

    def remove(self, name: str, waiting: asyncio.Future[None]) -> bool:
        """Removes a waiting request. Returns whether it was still waiting."""
        if waiting not in self._waiting[name]:
            return False
        self._waiting[name].remove(waiting)
        self._residency.stop_waiting(name)
        return True

    def hand_over(self, name: str) -> None:
        """Acquires the model for each waiting request, so that it is not unloaded before they use
        it."""
        for waiting in self._waiting.pop(name, ()):
            self._residency.stop_waiting(name)
            if not waiting.done():
                self._residency.acquire(name, self._clock())
                waiting.set_result(None)

    def refuse(self, name: str, error: BackendUnavailable) -> None:
        """Ends all waits for a model with an error."""
        self._refuse(name, self._waiting.pop(name, []), error)

    def refuse_orders(self, name: str, error: BackendUnavailable) -> None:
        """Ends the operator's commands that wait for a model with an error; requests of clients
        continue to wait."""
        waiting = self._waiting.pop(name, [])
        self._waiting[name] = [future for future in waiting if future not in self._orders]
        self._refuse(name, [future for future in waiting if future in self._orders], error)

    def _refuse(
        self, name: str, refused: list[asyncio.Future[None]], error: BackendUnavailable
    ) -> None:
        for waiting in refused:
            self._residency.stop_waiting(name)
            if not waiting.done():
                waiting.set_exception(error)


_LATER: Final = 0.001
"""Seconds added to a timer, so that rounding does not make it fire too early."""


class ModelPlan(NamedTuple):
    """A model that may be loaded.

    Attributes:
        known: the description that is available before loading.
        size: the approximate memory in bytes.
        file_size: the size of the weight files in bytes.
    """

    config: ModelConfig
    known: KnownModel
    size: int
    file_size: int = 0


class ModelChanges(NamedTuple):
    """The result of applying a new list of models.

    Attributes:
        is_any: whether anything has changed.
        loads: a future for each model that is to be loaded, done when that has succeeded or failed.
    """

    is_any: bool
    loads: Sequence[asyncio.Future[None]]


class ModelLoader(Protocol):
    """Loads models and frees their memory."""

    async def load(self, config: ModelConfig, num_loaded: int) -> ServedModels:
        """Loads one model and returns it. Raises ConfigurationError if it cannot be loaded.
        `num_loaded` is the number of models that are loaded already."""

    async def reclaim(self) -> None:
        """Returns the freed memory of unloaded models to the operating system."""


class ModelPool:
    """Loads and unloads models on demand. Implements `ModelHolder`; for use on the event loop.

    Attributes:
        num_loads, num_unloads, num_failures: counts by the model's name.
    """

    def __init__(
        self,
        models: ServedModels,
        residency: Residency,
        loader: ModelLoader,
        *,
        clock: Callable[[], float],
        wait_timeout: float,
        occupied: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Args:
        models: the models in memory; updated by the pool.
        wait_timeout: the maximum seconds that a request waits for its model.
        occupied: returns a context that is open while a request waits for its model.
        """
        self._models = models
        self._residency = residency
        self._loader = loader
        self._clock = clock
        self._wait_timeout = wait_timeout
        self._occupied = occupied
        self._configs: dict[str, ModelConfig] = {}
        self._known: dict[str, KnownModel] = {}
        self._loaded: dict[str, ModelPlan] = {}  # the plan of each model's last successful load
        self._waiters = ModelWaiters(residency, clock)
        self._places: dict[str, Shares] = {}
        self._move: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closes: dict[str, Callable[[], None]] = {}
        self._leaving: defaultdict[str, list[asyncio.Future[None]]] = defaultdict(list)
        self._closed = False
        self.num_loads: Counter[str] = Counter()
        self.num_unloads: Counter[str] = Counter()
        self.num_failures: Counter[str] = Counter()
        models.holder = self

    # State

    def start(self, plans: Sequence[ModelPlan]) -> None:
        """Sets the models that may be loaded, of which some may be in memory already."""
        for plan in plans:
            self._adopt(plan, is_loaded=plan.known.served is not None)
        self._notify()
        if self.loads_on_demand:
            for plan in plans:
                if plan.config.residency.is_permanent:
                    self._queue_load(plan.known.name)
        self._advance()

    def apply(self, plans: Sequence[ModelPlan]) -> ModelChanges:
        """Replaces the list of models. Removed and changed models are unloaded when their last
        request has ended."""
        given = {plan.known.name: plan for plan in plans}
        removed = [name for name in self._configs if name not in given]
        added = [plan for name, plan in given.items() if name not in self._configs]
        changed = [
            plan
            for name, plan in given.items()
            if name in self._configs and plan.config != self._configs[name]
        ]
        for name in removed:
            logger.info("models: %s is no longer served", name)
            self._waiters.refuse(name, BackendUnavailable(f"the model {name} is no longer served"))
            self._residency.remove(name)
            self._loaded.pop(name, None)
            self._places.pop(name, None)
            del self._configs[name]
        for plan in added:
            logger.info("models: %s is now served", plan.known.name)
            self._adopt(plan, is_loaded=False)
        for plan in changed:
            logger.info("models: the configuration of %s has changed", plan.known.name)
            self._change(plan)
        self._configs = {name: plan.config for name, plan in given.items()}
        self._notify()
        loads = [
            self._queue_load(plan.known.name)
            for plan in (*added, *changed)
            if plan.config.residency.is_permanent or not self.loads_on_demand
        ]
        self._advance()
        return ModelChanges(bool(removed or added or changed), loads)

    @property
    def configs(self) -> Mapping[str, ModelConfig]:
        """The configurations of the models that requests may name, by name."""
        return self._configs

    @property
    def loads_on_demand(self) -> bool:
        return self._residency.loads_on_demand

    def num_waiting(self) -> dict[str, int]:
        """Returns the number of waiting requests by model."""
        return {model.name: model.num_waiting for model in self._residency}

    # Requests

    def try_acquire(self, name: str) -> Release | None:
        if name not in self._residency or not self._residency.acquire(name, self._clock()):
            return None
        return partial(self._release, name)

    async def acquire(self, name: str, client: str = "") -> Release:
        release = self.try_acquire(name)
        if release is not None:
            return release
        if name not in self._configs:
            raise BackendUnavailable(f"the model {name} is no longer served")
        seconds = self._residency.seconds_to_retry(name, self._clock())
        if seconds:
            raise _not_loaded(self._known[name], seconds)
        places = self._places_of(name)
        if not places.may_take(client):
            raise Overloaded(
                f"{places.used} requests wait for {name} to be loaded, which is the limit"
            )
        waiting = self._wait(name)
        places.hold(client)
        try:
            with self._occupied():
                async with asyncio.timeout(self._wait_timeout):
                    await waiting
        except BaseException as error:
            self._give_up(name, waiting)
            if isinstance(error, TimeoutError):
                raise BackendUnavailable(
                    f"the model {name} could not be loaded within {self._wait_timeout:g} s",
                    retry_after=10.0,
                ) from None
            raise
        finally:
            places.give_back(client)
        return partial(self._release, name)

    def _places_of(self, name: str) -> Shares:
        """Returns the shares of the places in a model's waiting queue, with the current limit."""
        limit = self._configs[name].engine.max_num_queued_requests
        places = self._places.get(name)
        if places is None or places.free != limit:
            places = self._places[name] = Shares.of_places(limit)
        return places

    def _wait(self, name: str, *, is_order: bool = False) -> asyncio.Future[None]:
        """Adds a waiting request and returns its future, which is done once the model is
        acquired."""
        waiting = self._waiters.add(name, is_order=is_order)
        self._advance()
        return waiting

    def _give_up(self, name: str, waiting: asyncio.Future[None]) -> None:
        """Ends the wait of a request whose client has disconnected or whose time is over."""
        if self._waiters.remove(name, waiting):
            self._advance()
        elif not waiting.cancelled() and waiting.exception() is None:
            self._release(name)  # the load succeeded after the wait had ended

    def _release(self, name: str) -> None:
        self._residency.release(name, self._clock())
        self._advance()

    def _hold_again(self, name: str) -> Release:
        self._residency.acquire_again(name)
        return partial(self._release, name)

    # Operators

    async def load(self, name: str) -> None:
        """Loads a model and returns when it is in memory. Raises as `acquire` does."""
        self._residency.retry_now(name)
        (await self.acquire(name))()

    def seconds_to_unload(self, name: str) -> float | None:
        """Returns the seconds that a model stays loaded without requests; None = unlimited."""
        return self._residency.seconds_to_unload(name, self._clock())

    def is_permanent(self, name: str) -> bool:
        """Returns whether a model always stays loaded."""
        return self._residency.is_permanent(name)

    def dismiss(self, name: str) -> None:
        """Schedules a model to be unloaded when its last request has ended; returns at once."""
        self._residency.request_unload(name)
        self._advance()

    async def unload(self, name: str) -> None:
        """Unloads a model and returns when its memory is freed. Raises BackendUnavailable if
        requests still use the model; it is then unloaded when they have ended."""
        self.dismiss(name)
        if self._residency[name].uses_no_memory:
            return
        left = asyncio.get_running_loop().create_future()
        self._leaving[name].append(left)
        try:
            async with asyncio.timeout(self._wait_timeout):
                await left
        except TimeoutError:
            raise BackendUnavailable(
                f"requests still run on {name}: it will be unloaded when they end"
            ) from None

    def _queue_load(self, name: str) -> asyncio.Future[None]:
        """Queues the load of a model without a request for it, and returns its future."""

        def end(waiting: asyncio.Future[None]) -> None:
            if not waiting.cancelled() and waiting.exception() is None:
                self._release(name)

        waiting = self._wait(name, is_order=True)
        waiting.add_done_callback(end)
        return waiting

    # Moves

    def _advance(self) -> None:
        """Begins the next load or unload; if there is none, sets the timer for the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed:
            return
        now = self._clock()
        move = self._residency.next_move(now)
        if move is not None:
            self._notify()
            self._move = asyncio.ensure_future(self._do(move))
            return
        at = self._residency.wake_at(now)
        if at is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(at - now + _LATER, self._advance)

    async def _do(self, move: Move) -> None:
        try:
            if move.kind is MoveKind.LOAD:
                await self._load(move.name)
            else:
                await self._unload(move.name)
        finally:
            self._notify()
            self._advance()

    async def _load(self, name: str) -> None:
        known, config = self._known[name], self._configs.get(name)
        if config is None:  # it was removed from the list after it was chosen
            self._residency.failed(self._clock())
            return
        plan = ModelPlan(config, known, known.size, known.file_size)
        num_loaded = sum(model.served is not None for model in self._known.values())
        try:
            loaded = await self._loader.load(config, num_loaded)
            [model] = loaded
            await _warm_up(model)
        except Exception as error:
            known.reason = description_of(error)
            trace = None if isinstance(error, ConfigurationError) else error
            logger.error("models: cannot load %s: %s", name, error, exc_info=trace)
            self.num_failures[name] += 1
            self._residency.failed(self._clock())
            if name in self._configs:  # a removed model's waiters have been refused already
                self._note_failure(plan)
            return
        if known.metrics is not None:
            model.metrics.continue_from(known.metrics)
        model = replace(model, hold=partial(self._hold_again, name))
        known.note_loaded(model)
        self._closes[name] = loaded.close
        self.num_loads[name] += 1
        self._residency.loaded(self._clock())
        if not self._residency[name].leaves:
            self._loaded[name] = plan
            self._waiters.hand_over(name)

    def _note_failure(self, plan: ModelPlan) -> None:
        """Handles a failed load: queues another one if the configuration has changed during the
        load, or with the last successful configuration if that differs. Otherwise ends the waits
        with the error."""
        name = plan.known.name
        # The configuration has changed since: try the new one.
        if self._configs[name] != plan.config:
            self._residency.change(name, plan.known.size, self._configs[name].residency)
            return
        refusal = _not_loaded(plan.known, self._residency.seconds_to_retry(name, self._clock()))
        former = self._loaded.get(name)
        if former is None or former.config == plan.config or self.loads_on_demand:
            self._loaded.pop(name, None)
            self._waiters.refuse(name, refusal)
            return
        self._waiters.refuse_orders(name, refusal)
        self._change(former)
        self._queue_load(name)

    async def _unload(self, name: str) -> None:
        known = self._known[name]
        model, known.served = known.served, None
        assert model is not None
        try:
            await model.backend.close()
            model.metrics.end()
            del model
            close = self._closes.pop(name, None)
            if close is not None:
                await asyncio.to_thread(close)
                del close
            await self._loader.reclaim()
        finally:
            logger.info("models: unloaded %s", name)
            self.num_unloads[name] += 1
            self._residency.unloaded()

    def _adopt(self, plan: ModelPlan, *, is_loaded: bool) -> None:
        name = plan.known.name
        known = self._known.setdefault(name, plan.known)
        self._describe(known, plan)
        policy = plan.config.residency
        self._residency.add(name, plan.size, policy, is_loaded=is_loaded, now=self._clock())
        if known.served is not None:
            known.served = replace(known.served, hold=partial(self._hold_again, name))
        if is_loaded:
            self._loaded[name] = plan

    def _change(self, plan: ModelPlan) -> None:
        """Sets the configuration of a model for its next load."""
        known = self._known[plan.known.name]
        self._describe(known, plan)
        self._residency.change(known.name, plan.size, plan.config.residency)

    def _describe(self, known: KnownModel, plan: ModelPlan) -> None:
        known.aliases, known.size = plan.config.names[1:], plan.size
        known.file_size, known.lora_modules = plan.file_size, plan.config.engine.lora_modules
        self._configs[known.name] = plan.config

    def _notify(self) -> None:
        """Publishes the models and their states, and wakes those that wait for an unload."""
        for name in list(self._known):
            if name in self._residency:
                self._known[name].state = self._residency[name].state
            else:
                del self._known[name]
        leaving = [known for name, known in self._known.items() if name not in self._configs]
        self._models.set_known([self._known[name] for name in self._configs], leaving)
        for name in list(self._leaving):
            if name not in self._residency or self._residency[name].uses_no_memory:
                for left in self._leaving.pop(name):
                    if not left.done():
                        left.set_result(None)

    async def close(self) -> None:
        """Stops loading and unloading; waiting requests get an error."""
        self._closed = True
        self._advance()
        for name in self._waiters.names:
            self._waiters.refuse(name, ServerClosing("the server is shutting down"))
        if self._move is not None:
            self._move.cancel()
            await asyncio.gather(self._move, return_exceptions=True)
        for name, known in self._known.items():
            if name not in self._configs and known.served is not None:
                await known.served.backend.close()


async def _warm_up(model: AnyServed) -> None:
    """Starts a model's backend and waits until it is ready for requests. Closes the backend if that
    fails. Raises EngineFailed if the model cannot compute."""
    model.backend.start()
    try:
        await model.backend.warmed_up()
    except BaseException:
        await model.backend.close()
        raise


def _not_loaded(known: KnownModel, seconds: float) -> BackendUnavailable:
    return BackendUnavailable(
        f"the model {known.name} could not be loaded: {known.reason}", retry_after=seconds
    )


_NUM_WAITING: Final = Gauge(
    "num_requests_waiting_for_model", "Requests that wait for their model to be loaded"
)
_WEIGHTS: Final = Gauge(
    "weights_bytes", "Bytes of the weights of a model that is loaded, as its files have them"
)
_NUM_LOADS: Final = Series("counter", "model_loads", "Models loaded since the server has started")
_NUM_FAILURES: Final = Series("counter", "model_load_failures", "Model loads that failed")
_NUM_UNLOADS: Final = Series("counter", "model_unloads", "Models unloaded")


class ModelCollector(Collector):
    """Exports the state of each model as a metric."""

    def __init__(self, models: ServedModels, pool: ModelPool) -> None:
        self._models = models
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        states = GaugeMetricFamily(
            f"{PREFIX}model_state",
            "1 for the state in which a model is, 0 for the others",
            labels=["model_name", "state"],
        )
        for model in self._models.known:
            for state in ModelState:
                states.add_metric([model.name, state.value], float(model.state is state))
        yield states
        pool, known = self._pool, self._models.known
        loaded = {model.name: model.file_size for model in known if model.served is not None}
        for series, numbers in (
            (_NUM_WAITING, pool.num_waiting()),
            (_WEIGHTS, loaded),
            (_NUM_LOADS, pool.num_loads),
            (_NUM_FAILURES, pool.num_failures),
            (_NUM_UNLOADS, pool.num_unloads),
        ):
            yield family(series, {model.name: numbers.get(model.name, 0) for model in known})
