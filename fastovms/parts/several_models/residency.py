"""Decides which model is loaded next, and which one is unloaded to make room. This module loads no
models and has no clock of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from fastovms.api.served import ModelState
from fastovms.server_config import NO_GROUP, ModelResidency, ResidencyConfig

_PATIENCE: Final = 5.0
"""Seconds that a request waits for another model to become idle. Then a model in use is chosen to
be unloaded: it accepts no further requests until the waiting one has been served."""

_FIRST_RETRY: Final = 2.0
_LAST_RETRY: Final = 300.0
"""The maximum seconds between a failed load and the next attempt; the delay doubles each time."""


class MoveKind(Enum):
    """The kind of a model's next state change."""

    LOAD = "load"
    UNLOAD = "unload"


class Move(NamedTuple):
    """One load or unload of a model."""

    kind: MoveKind
    name: str


@dataclass(slots=True)
class Resident:
    """The loading state and use counts of one model.

    Attributes:
        size: the model's memory in bytes.
        policy: the idle time before an unload, and the models that may be loaded at the same time.
        num_uses: the number of requests that use the model or are about to.
        num_waiting: the number of requests and operator commands that wait for the model.
        last_used: the time at which the model was last acquired or released.
        waits_since: the time at which the oldest waiting request arrived.
        leaves: whether the model accepts no further requests and is unloaded after the last one.
        is_removed: whether the model is removed from the list after it is unloaded.
        retry_at: the time from which a failed load may be retried.
    """

    name: str
    size: int = 0
    policy: ModelResidency = NO_GROUP
    state: ModelState = ModelState.UNLOADED
    num_uses: int = 0
    num_waiting: int = 0
    last_used: float = 0.0
    waits_since: float = 0.0
    leaves: bool = False
    is_removed: bool = False
    num_failures: int = 0
    retry_at: float = 0.0

    @property
    def uses_no_memory(self) -> bool:
        """Whether the model uses no memory."""
        return self.state in (ModelState.UNLOADED, ModelState.FAILED)

    @property
    def is_idle(self) -> bool:
        """Whether the model is loaded, and no request uses it or waits for it."""
        return self.state is ModelState.AVAILABLE and not self.num_uses and not self.num_waiting

    @property
    def may_unload(self) -> bool:
        """Whether the model is to be unloaded, and no request uses it."""
        return self.leaves and self.state is ModelState.AVAILABLE and not self.num_uses


class Residency:
    """The loading state machine of all models. The caller gets a move from `next_move`, performs
    the load or unload, and reports the result; there is one move at a time. `config` has the limits
    on loaded models and their bytes, and the idle time before an unload."""

    def __init__(self, config: ResidencyConfig) -> None:
        self._config = config
        self._models: dict[str, Resident] = {}
        self._move: Move | None = None

    def __iter__(self) -> Iterator[Resident]:
        return iter(self._models.values())

    def __getitem__(self, name: str) -> Resident:
        return self._models[name]

    def __contains__(self, name: str) -> bool:
        return name in self._models

    @property
    def loads_on_demand(self) -> bool:
        """Whether models are loaded on demand; otherwise they are loaded at the start."""
        return self._config.loads_on_demand(model.policy for model in self)

    # State

    def add(
        self,
        name: str,
        size: int,
        policy: ModelResidency = NO_GROUP,
        *,
        is_loaded: bool = False,
        now: float = 0.0,
    ) -> None:
        """Adds a model for which no request waits yet, or keeps a model that was to be removed."""
        if name in self._models:
            assert self._models[name].is_removed
            self._models[name].is_removed = False
            self.change(name, size, policy)
            return
        state = ModelState.AVAILABLE if is_loaded else ModelState.UNLOADED
        self._models[name] = Resident(name, size, policy, state, last_used=now)

    def change(self, name: str, size: int, policy: ModelResidency = NO_GROUP) -> None:
        """Records a change of a model's configuration; the loaded version is unloaded."""
        model = self._models[name]
        model.size, model.policy = size, policy
        model.num_failures, model.retry_at = 0, 0.0
        model.leaves = not model.uses_no_memory
        if model.state is ModelState.FAILED:
            model.state = ModelState.UNLOADED

    def remove(self, name: str) -> None:
        """Removes a model, when the last request that uses it has ended. No request may wait for
        the model."""
        model = self._models[name]
        assert not model.num_waiting
        if model.uses_no_memory:
            del self._models[name]
        else:
            model.leaves = model.is_removed = True

    # Requests

    def acquire(self, name: str, now: float) -> bool:
        """Acquires a model for a request. Returns False if the model is not loaded, or is to be
        unloaded."""
        model = self._models[name]
        if model.state is not ModelState.AVAILABLE or model.leaves:
            return False
        model.num_uses += 1
        model.last_used = now
        return True

    def acquire_again(self, name: str) -> None:
        """Acquires a model once more that is already in use."""
        model = self._models[name]
        assert model.state is ModelState.AVAILABLE
        model.num_uses += 1

    def release(self, name: str, now: float) -> None:
        """Releases an acquired model."""
        model = self._models[name]
        assert model.num_uses > 0
        model.num_uses -= 1
        model.last_used = now

    def wait(self, name: str, now: float) -> None:
        """Records another request that waits for a model."""
        model = self._models[name]
        if not model.num_waiting:
            model.waits_since = now
        model.num_waiting += 1

    def stop_waiting(self, name: str) -> None:
        """Records that a request no longer waits, for any reason."""
        model = self._models[name]
        assert model.num_waiting > 0
        model.num_waiting -= 1

    def seconds_to_retry(self, name: str, now: float) -> float:
        """Returns the seconds until a failed load may be retried; 0 = now."""
        model = self._models[name]
        if model.state is not ModelState.FAILED:
            return 0.0
        return max(0.0, model.retry_at - now)

    def seconds_to_unload(self, name: str, now: float) -> float | None:
        """Returns the seconds that a model stays loaded without requests; None = unlimited."""
        model = self._models[name]
        at = self._unload_at(model)
        return (self._idle_time(model) or None) if at is None else max(0.0, at - now)

    def is_permanent(self, name: str) -> bool:
        """Returns whether a model always stays loaded."""
        return self._models[name].policy.is_permanent

    def retry_now(self, name: str) -> None:
        """Allows an immediate retry of a model that failed to load."""
        self._models[name].retry_at = 0.0

    def request_unload(self, name: str) -> None:
        """Marks a model, with the others of its group, to be unloaded after the last requests."""
        for model in self._group_of(self._models[name]):
            if model.state is not ModelState.UNLOADING:
                model.leaves = not model.uses_no_memory

    # Moves

    def next_move(self, now: float) -> Move | None:
        """Begins the next move and returns it; None = there is nothing to do now."""
        if self._move is not None:
            return None
        leaving = next((model for model in self if model.may_unload), None)
        wanted = self._next_to_load(now)
        if leaving is not None:
            return self._begin(MoveKind.UNLOAD, leaving)
        if wanted is not None:
            if self._has_room(wanted):
                return self._begin(MoveKind.LOAD, wanted)
            victim = self._least_recently_used(wanted)
            if victim is not None:
                return self._begin(MoveKind.UNLOAD, victim)
            if now >= wanted.waits_since + _PATIENCE:
                self._choose_to_unload(wanted)
            return None
        for model in self:
            at = self._unload_at(model)
            if at is not None and now >= at:
                return self._begin(MoveKind.UNLOAD, model)
        companion = next((model for model in self if self._is_missing(model)), None)
        return None if companion is None else self._begin(MoveKind.LOAD, companion)

    def wake_at(self, now: float) -> float | None:
        """Returns the time at which `next_move` may have a move even without a new request; None =
        never."""
        if self._move is not None:
            return None
        times = [m.retry_at for m in self if m.num_waiting and m.state is ModelState.FAILED]
        wanted = self._next_to_load(now)
        if wanted is not None and not any(model.leaves for model in self):
            times.append(wanted.waits_since + _PATIENCE)
        times += [at for at in map(self._unload_at, self) if at is not None]
        return min((time for time in times if time > now), default=None)

    def loaded(self, now: float) -> None:
        """Records that the current load has succeeded."""
        model = self._end(MoveKind.LOAD)
        model.state = ModelState.AVAILABLE
        model.num_failures, model.last_used = 0, now

    def failed(self, now: float) -> None:
        """Records that the current load has failed. The next request retries it after a delay."""
        model = self._end(MoveKind.LOAD)
        model.state, model.leaves = ModelState.FAILED, False
        model.retry_at = now + min(_FIRST_RETRY * 2**model.num_failures, _LAST_RETRY)
        model.num_failures = min(model.num_failures + 1, 16)
        if model.is_removed:
            del self._models[model.name]

    def unloaded(self) -> None:
        """Records that the current unload has finished."""
        model = self._end(MoveKind.UNLOAD)
        model.state, model.leaves = ModelState.UNLOADED, False
        if model.is_removed:
            del self._models[model.name]

    def check(self) -> None:
        """Asserts that the states are consistent."""
        moving = [m for m in self if m.state in (ModelState.LOADING, ModelState.UNLOADING)]
        assert [m.name for m in moving] == ([] if self._move is None else [self._move.name])
        for model in self:
            assert model.num_uses >= 0
            assert model.num_waiting >= 0
            assert not model.num_uses or model.state is ModelState.AVAILABLE
            assert not (model.is_removed and model.num_waiting)
            assert not (model.leaves and model.uses_no_memory)
        limit = self._config.max_loaded_models
        present = self._present()
        assert limit is None or len(present) <= limit
        if self.loads_on_demand:
            staying = [model.policy for model in present if not model.leaves]
            assert not any(one.excludes(other) for one in staying for other in staying)

    def _begin(self, kind: MoveKind, model: Resident) -> Move:
        is_load = kind is MoveKind.LOAD
        model.state = ModelState.LOADING if is_load else ModelState.UNLOADING
        self._move = Move(kind, model.name)
        return self._move

    def _end(self, kind: MoveKind) -> Resident:
        assert self._move is not None
        assert self._move.kind is kind
        model = self._models[self._move.name]
        self._move = None
        return model

    def _next_to_load(self, now: float) -> Resident | None:
        """Returns the model with the oldest waiting request among those that may be loaded; None =
        there is none."""
        waiting = [m for m in self if m.num_waiting and m.uses_no_memory and m.retry_at <= now]
        return min(waiting, key=lambda model: model.waits_since, default=None)

    def _present(self) -> list[Resident]:
        """Returns the models in memory that may be unloaded: all except permanent ones."""
        return [m for m in self if not m.uses_no_memory and not m.policy.is_permanent]

    def _group_of(self, model: Resident) -> list[Resident]:
        """Returns the model and the models that are always loaded and unloaded together with it."""
        if not model.policy.is_exclusive or not self.loads_on_demand:
            return [model]
        return [other for other in self if other.policy.group == model.policy.group]

    def _excludes(self, one: Resident, other: Resident) -> bool:
        """Returns whether the models' groups forbid that both are in memory. Always False if models
        are not loaded on demand, because then all stay loaded."""
        return self.loads_on_demand and one.policy.excludes(other.policy)

    def _idle_time(self, model: Resident) -> float:
        """Returns the seconds that a model stays loaded without requests; 0 = unlimited."""
        if model.policy.is_permanent:
            return 0.0
        own = model.policy.idle_unload
        return self._config.idle_unload if own is None else own

    def _unload_at(self, model: Resident) -> float | None:
        """Returns the time at which an idle model is unloaded, unless its group is used before;
        None = never."""
        present = [other for other in self._group_of(model) if not other.uses_no_memory]
        times = [self._idle_time(other) for other in present]
        if not model.is_idle or not all(times) or not all(other.is_idle for other in present):
            return None
        return max(times) + max(other.last_used for other in present)

    def _is_missing(self, model: Resident) -> bool:
        """Returns whether a model is to be loaded because others of its group are in memory."""
        if model.state is not ModelState.UNLOADED or not self._has_room(model):
            return False
        group = self._group_of(model)
        return any(m.state is ModelState.AVAILABLE and not m.leaves for m in group)

    def _has_room(self, wanted: Resident) -> bool:
        limit, memory = self._config.max_loaded_models, self._config.model_memory
        present = self._present()
        if any(self._excludes(model, wanted) for model in present):
            return False
        if limit is not None and len(present) >= limit and not wanted.policy.is_permanent:
            return False
        if memory is None or not present:  # a single model is admitted, whatever its estimated size
            return True
        return sum(model.size for model in self if not model.uses_no_memory) + wanted.size <= memory

    def _least_recently_used(self, wanted: Resident) -> Resident | None:
        """Returns the idle model that was used least recently and may be unloaded for `wanted`;
        None = there is none."""
        idle = [model for model in self._blocking_models(wanted) if model.is_idle]
        return min(idle, key=lambda model: model.last_used, default=None)

    def _blocking_models(self, wanted: Resident) -> list[Resident]:
        """Returns the models that may be unloaded for `wanted`: those of excluded groups, or else
        all."""
        present = self._present()
        excluded = [model for model in present if self._excludes(model, wanted)]
        return excluded or present

    def _choose_to_unload(self, wanted: Resident) -> None:
        """Chooses models in use that accept no further requests: all models of excluded groups, or
        else the one that was used least recently."""
        if not any(model.leaves for model in self):
            used = [model for model in self._blocking_models(wanted) if model.num_uses]
            if any(self._excludes(model, wanted) for model in used):
                for model in used:
                    model.leaves = True
            elif used:
                min(used, key=lambda model: model.last_used).leaves = True
