"""Tests of `fastovms/parts/tuning/measurement.py`."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model.kv_cache import BlockCopy
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.parts.tuning.measurement import (
    BUDGET_CASES,
    LOAD_CASES,
    MIN_ROUNDS,
    FastestWay,
    choose,
    choose_token_budget,
    measure,
    speed_ratios,
)
from tests.engine.engines import fake_engine, greedy, texts
from tests.engine.fake_model import FakeModel, continue_greedily

# The choice of the fastest way to run a model, with a clock that the models advance.


Cost = Callable[[int, int], float]
"""The seconds of a step by its sequences and tokens."""


class Clock:
    now = 0.0
    is_calm = True

    def __call__(self) -> float:
        return self.now


class TimedModel:
    block_size = 32
    bytes_per_block = 1
    rope_switch_len = None
    states = None

    def __init__(self, clock: Clock, cost: Cost) -> None:
        self._clock = clock
        self._cost = cost
        self.num_blocks = 0

    def allocate_cache(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None: ...

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        num_sequences, num_tokens = len(inputs.past_lens), len(inputs.input_ids)
        assert max(inputs.block_indices) < self.num_blocks
        assert inputs.max_context_len == inputs.past_lens[0] + num_tokens // num_sequences
        self._clock.now += self._cost(num_sequences, num_tokens)
        return np.zeros((num_sequences, 1), np.float32)


def linear(base: float, token: float) -> Cost:
    return lambda num_sequences, num_tokens: base + token * num_tokens


def noisy(cost: Cost, seed: int, noise: float) -> Cost:
    rng = random.Random(seed)
    return lambda *sizes: cost(*sizes) * rng.uniform(1, 1 + noise)


def best(costs: dict[str, Cost], max_seconds: float = 1e9) -> FastestWay | None:
    clock = Clock()
    models = {name: TimedModel(clock, cost) for name, cost in costs.items()}
    times = measure(models, LOAD_CASES, clock, max_seconds=max_seconds, max_rounds=9)
    default, *others = times
    return choose(default, {name: speed_ratios(times[name], times[default]) for name in others})


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ({"a": linear(1, 0.01)}, "a"),
        ({"a": linear(1, 0.01), "b": linear(0.5, 0.01)}, "b"),
        ({"a": linear(1, 0.01), "b": linear(0.97, 0.01)}, "a"),  # not worth a change
        ({"a": linear(1, 0.01), "b": linear(0.8, 0.01), "c": linear(0.6, 0.01)}, "c"),
        ({"a": linear(1, 0.01), "b": linear(2, 0.001)}, "a"),  # prompts alone are not all
        ({"a": linear(1, 0.01), "b": linear(1, 0.01), "c": linear(1, 0.01)}, "a"),
    ],
)
def test_the_fastest_wins_if_it_is_clearly_so(costs: dict[str, Cost], expected: str) -> None:
    choice = best(costs)
    assert choice is not None
    assert choice.name == expected
    assert choice.gain == 1 if expected == "a" else choice.gain > 1.05


@pytest.mark.parametrize("seed", range(20))
def test_noisy_steps_do_not_decide_the_choice(seed: int) -> None:
    """Other processes make steps up to twice as slow."""
    costs = {name: noisy(linear(1, 0.01), seed * 3 + i, 1.0) for i, name in enumerate("abc")}
    choice = best(costs)
    assert choice is not None
    assert choice.name == "a" or choice.gain < 1.3
    costs["b"] = noisy(linear(0.4, 0.004), seed, 1.0)
    choice = best(costs)
    assert choice is not None
    assert choice.name == "b"


def test_load_burst_in_one_round_does_not_change_the_choice() -> None:
    """A burst during one round of one way."""
    calls = iter(range(10**9))
    burst = 2 * len(LOAD_CASES)

    def cost(num_sequences: int, num_tokens: int) -> float:
        return 50.0 if burst <= next(calls) < burst + len(LOAD_CASES) else 1.0

    choice = best({"a": cost, "b": lambda *_: 1.0})
    assert choice is not None
    assert choice.name == "a"


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (linear(1, 0.01), 512),  # the base is shared by more tokens
        (linear(0.001, 0.01), 256),
        (lambda sequences, tokens: 1.0 if tokens <= 256 else 3.0, 256),
    ],
)
def test_the_budget_grows_where_prompts_gain(cost: Cost, expected: int) -> None:
    clock = Clock()
    models = {"a": TimedModel(clock, cost)}
    times = measure(models, BUDGET_CASES, clock, max_seconds=1e9, max_rounds=5)
    assert choose_token_budget(times["a"]) == expected


def test_too_slow_a_model_is_left_alone_after_one_round() -> None:
    clock = Clock()
    model = TimedModel(clock, linear(1, 0.01))
    times = measure({"a": model}, LOAD_CASES, clock, max_seconds=20, max_rounds=9)
    assert not any(times["a"].values())
    round_seconds = sum(1 + 0.01 * case.num_sequences * case.num_tokens for case in LOAD_CASES)
    assert clock.now == pytest.approx(round_seconds)


def test_measuring_ends_within_its_seconds() -> None:
    clock = Clock()
    models = {name: TimedModel(clock, linear(0.1, 0.001)) for name in "ab"}
    times = measure(models, LOAD_CASES, clock, max_seconds=20, max_rounds=100)
    assert 15 < clock.now <= 20
    num_rounds = {len(samples) for name in "ab" for samples in times[name].values()}
    assert len(num_rounds) == 1
    assert num_rounds.pop() >= MIN_ROUNDS


def test_choice_needs_a_minimum_number_of_rounds() -> None:
    assert choose("a", {"b": [2.0] * (MIN_ROUNDS - 1)}) is None
    assert choose("a", {"b": [2.0] * MIN_ROUNDS}) == FastestWay("b", 2.0)


def test_rounds_with_slow_memory_do_not_count() -> None:
    """Another process takes half of the memory's speed in every other round."""
    clock = Clock()
    speeds = itertools.cycle([20.0, 10.0])

    def cost(num_sequences: int, num_tokens: int) -> float:
        return 1.0 if clock.is_calm else 2.0

    def memory_speed() -> float:
        speed = next(speeds)
        clock.is_calm = speed < 20  # what the next round will be
        return speed

    models = {"a": TimedModel(clock, cost)}
    times = measure(
        models, BUDGET_CASES, clock, max_seconds=1e9, max_rounds=5, memory_speed=memory_speed
    )
    assert set(map(tuple, times["a"].values())) == {(1.0,) * 5}


def test_rounds_are_not_made_again_for_ever() -> None:
    clock = Clock()
    models = {"a": TimedModel(clock, linear(1, 0))}
    times = measure(
        models, BUDGET_CASES, clock, max_seconds=1e9, max_rounds=5, memory_speed=lambda: 0.0
    )
    assert not any(times["a"].values())


@pytest.mark.parametrize(
    ("max_model_len", "steps"), [(1, [1, 1]), (2, [1, 1]), (9, [8, 1]), (8192, [64, 1])]
)
def test_a_prompt_and_a_token_in_the_first_blocks(max_model_len: int, steps: list[int]) -> None:
    model = FakeModel(block_size=4)
    model.allocate_cache(-(-sum(steps) // 4))
    engine = Engine(
        model, EngineConfig(), num_blocks=-(-max_model_len // 4), max_model_len=max_model_len
    )
    engine.warm_up()
    assert model.num_tokens_per_step == steps
    assert model.has_forgotten_files


def test_warm_up_does_not_change_the_generated_tokens() -> None:
    engine = fake_engine()
    engine.warm_up()
    engine.check()
    asked = greedy("r", list(range(9)), max_tokens=8)
    assert texts(engine, asked)["r", 0] == continue_greedily(list(range(9)), 8)
