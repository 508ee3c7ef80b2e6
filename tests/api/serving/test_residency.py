"""Which models are in memory, and which go: by rules, and under random operations."""

from __future__ import annotations

import random

import pytest

from fastovms.api.serving.residency import ModelState, Move, MoveKind, Residency
from fastovms.config.residency_config import ResidencyConfig

LOAD, UNLOAD = MoveKind.LOAD, MoveKind.UNLOAD


def residency(*names: str, size: int = 10, **config: float) -> Residency:
    models = Residency(ResidencyConfig(**config))  # type: ignore[arg-type]
    for name in names:
        models.add(name, size)
    return models


def load(models: Residency, name: str, now: float) -> None:
    """Loads a model for a request that then has it."""
    models.wait(name, now)
    assert models.next_move(now) == Move(LOAD, name)
    assert models.next_move(now) is None  # one at a time
    models.loaded(now)
    models.stop_waiting(name)
    assert models.acquire(name, now)


@pytest.mark.parametrize("config", [{"max_loaded_models": 2}, {"model_memory": 25}])
def test_the_idle_model_that_was_used_least_recently_makes_room(config: dict[str, int]) -> None:
    models = residency("a", "b", "c", **config)
    load(models, "a", 1)
    load(models, "b", 2)
    models.wait("c", 3)
    assert models.next_move(3) is None  # both are in use
    models.release("b", 4)
    models.release("a", 5)
    assert models.next_move(5) == Move(UNLOAD, "b")
    assert not models.acquire("b", 5)
    models.unloaded()
    assert models.next_move(5) == Move(LOAD, "c")
    models.check()


def test_a_request_waits_for_busy_models_but_not_for_ever() -> None:
    models = residency("a", "b", max_loaded_models=1)
    load(models, "a", 0)
    models.wait("b", 1)
    assert models.next_move(1) is None
    assert models.acquire("a", 2)  # others go on meanwhile
    at = models.wake_at(2)
    assert at is not None
    assert at > 2
    assert models.next_move(at) is None
    assert not models.acquire("a", at)  # now it is the other's turn
    models.release("a", at)
    assert models.next_move(at) is None
    models.release("a", at)
    assert models.next_move(at) == Move(UNLOAD, "a")


def test_a_load_that_fails_is_tried_again_later_and_later() -> None:
    models = residency("a", max_loaded_models=1)
    now, waits = 0.0, []
    for _ in range(12):
        models.wait("a", now)
        assert models.next_move(now) == Move(LOAD, "a")
        models.failed(now)
        models.stop_waiting("a")
        waits.append(models.seconds_to_retry("a", now))
        models.wait("a", now)
        assert models.next_move(now) is None
        assert models.wake_at(now) == now + waits[-1]
        models.stop_waiting("a")
        now += waits[-1]
        models.check()
    assert waits[:3] == [2, 4, 8]
    assert waits[-1] == 300
    models.wait("a", now)
    assert models.next_move(now) == Move(LOAD, "a")
    models.loaded(now)
    assert models.seconds_to_retry("a", now) == 0


def test_idle_models_leave() -> None:
    models = residency("a", idle_unload=10)
    load(models, "a", 0)
    assert models.wake_at(5) is None
    assert models.seconds_to_leave("a", 5) == 10
    models.release("a", 5)
    assert models.wake_at(6) == 15
    assert models.seconds_to_leave("a", 6) == 9
    assert models.seconds_to_leave("a", 16) == 0
    assert models.next_move(14.9) is None
    assert models.next_move(15) == Move(UNLOAD, "a")


def test_models_stay_unless_the_operator_wants_them_to_leave() -> None:
    models = residency("a")
    load(models, "a", 0)
    models.release("a", 5)
    assert models.seconds_to_leave("a", 6) is None


def test_a_model_that_is_removed_ends_its_requests_first() -> None:
    models = residency("a", "b")
    load(models, "a", 0)
    models.remove("a")
    models.remove("b")
    assert "b" not in models
    assert not models.acquire("a", 1)
    assert models.next_move(1) is None
    models.add("a", 5)  # it is back before it has gone
    models.release("a", 2)
    assert models.next_move(2) == Move(UNLOAD, "a")
    models.unloaded()
    assert models["a"].state is ModelState.UNLOADED
    models.remove("a")
    assert "a" not in models


def test_a_model_that_is_leaving_is_asked_to_leave_once_more() -> None:
    models = residency("a")
    load(models, "a", 0)
    models.release("a", 1)
    models.ask_to_leave("a")
    assert models.next_move(2) == Move(UNLOAD, "a")
    models.ask_to_leave("a")
    assert models["a"].leaves
    models.unloaded()
    models.ask_to_leave("a")
    assert not models["a"].leaves
    models.check()


@pytest.mark.parametrize("seed", range(20))
def test_random_operations(seed: int) -> None:
    """Whatever happens, no model in use leaves, limits hold, and whoever waits has a turn."""
    rng = random.Random(seed)
    config = {"max_loaded_models": rng.choice([1, 2]), "idle_unload": rng.choice([0, 30])}
    models = residency("a", "b", "c", "d", **config)
    now, move = 0.0, None
    uses: dict[str, int] = dict.fromkeys("abcd", 0)

    def finish() -> None:
        if move.kind is UNLOAD:
            assert not uses[move.name]
            models.unloaded()
        elif rng.random() < 0.2:
            models.failed(now)
        else:
            models.loaded(now)
            if not models[move.name].leaves:
                while models[move.name].num_waiting:
                    models.stop_waiting(move.name)
                    assert models.acquire(move.name, now)
                    uses[move.name] += 1

    for _ in range(400):
        now += rng.random()
        name = rng.choice("abcd")
        kind = rng.randrange(8)
        if kind < 3:
            if models.acquire(name, now):
                uses[name] += 1
            else:
                models.wait(name, now)
        elif kind < 5 and uses[name]:
            uses[name] -= 1
            models.release(name, now)
        elif kind == 5 and models[name].num_waiting:
            models.stop_waiting(name)
        elif kind == 6 and rng.random() < 0.3:
            rng.choice([models.ask_to_leave, models.retry_now])(name)
        elif kind == 7 and rng.random() < 0.3:
            models.change(name, 10)
        if move is not None and rng.random() < 0.5:
            finish()
            move = None
        move = models.next_move(now) or move
        models.check()
        assert {model.name: model.num_uses for model in models} == uses

    for _ in range(1000):  # nobody comes any more
        now = max(now + 0.01, models.wake_at(now) or 0)
        if move is not None:
            finish()
            move = None
        for name in "abcd":
            while uses[name]:
                uses[name] -= 1
                models.release(name, now)
        move = models.next_move(now)
    assert not any(model.num_waiting for model in models)
