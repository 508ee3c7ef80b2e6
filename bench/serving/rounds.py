"""Applies a load to several sides in turn, with the same prompts in each round."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from bench.serving.load_shape import LoadShape
from bench.serving.sides import Side
from fastovms.errors import RequestFailed
from fastovms.parts.load_test.report import Load


@dataclass(frozen=True, slots=True)
class Rounds:
    """The results of a load's rounds: the figures by the name of the side, and the speed of the
    memory in bytes per second before each side's turn, both by round."""

    shape: LoadShape
    loads: dict[str, list[Load]]
    memory_speeds: list[list[float]] = field(default_factory=list)


def run_rounds(
    sides: Mapping[str, Side],
    shape: LoadShape,
    *,
    num_rounds: int,
    num_warm_up: int | None = None,
    rng: random.Random,
    rest: Callable[[], None],
    memory_speed: Callable[[], float],
    on_load: Callable[[str, Load], None] = lambda name, load: None,
) -> Rounds:
    """Runs all sides in turn, once to warm up, and then for the given number of rounds.

    Args:
        num_warm_up: the number of requests, sent at once, that warm up a side; None = a whole
            round.
        rest: waits before each turn until the other sides are idle.
        on_load: called after each turn of a round with the name of the side.

    Raises:
        SystemExit: a side failed, or generated fewer tokens than requested.
    """
    rounds = Rounds(shape, {name: [] for name in sides})
    warm_up = shape
    if num_warm_up is not None:
        warm_up = replace(shape, num_requests=num_warm_up, arrivals="at-once")
    for number in range(-1, num_rounds):
        requests = (warm_up if number < 0 else shape).draw(rng)
        expected = sum(request.num_output_tokens for request in requests)
        speeds = []
        for name, side in sides.items():
            rest()
            speeds.append(memory_speed())
            try:
                load = side(requests)
            except RequestFailed as error:
                raise SystemExit(f"{name}: {error}") from None
            if load.num_tokens != expected:
                raise SystemExit(f"{name}: {load.num_tokens} output tokens, not {expected}")
            if number >= 0:
                rounds.loads[name].append(load)
                on_load(name, load)
        if number >= 0:
            rounds.memory_speeds.append(speeds)
    return rounds


def run_from_start(
    starts: Mapping[str, Callable[[], AbstractContextManager[Side]]],
    shape: LoadShape,
    *,
    seconds: float,
    num_starts: int,
    rng: random.Random,
    rest: Callable[[], None],
    memory_speed: Callable[[], float],
    clock: Callable[[], float] = time.perf_counter,
    on_load: Callable[[str, Load], None] = lambda name, load: None,
) -> Rounds:
    """Starts each side anew and sends one round after another from its first answer on until
    `seconds` have passed. All rounds together are one load. Raises SystemExit if a side fails;
    `run_rounds` describes the other arguments."""
    rounds = Rounds(shape, {name: [] for name in starts})
    for _ in range(num_starts):
        seed, speeds = rng.random(), []
        for name, start in starts.items():
            rest()
            speeds.append(memory_speed())
            prompts, timelines = random.Random(seed), []
            with start() as side:
                begin = clock()
                while clock() - begin < seconds:
                    try:
                        timelines += side(shape.draw(prompts)).timelines
                    except RequestFailed as error:
                        raise SystemExit(f"{name}: {error}") from None
            load = Load.of(timelines)
            rounds.loads[name].append(load)
            on_load(name, load)
        rounds.memory_speeds.append(speeds)
    return rounds
