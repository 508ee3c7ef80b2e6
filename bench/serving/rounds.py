"""Runs a load on several sides in turn, on the same prompts round by round."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.serving.load_shape import LoadShape
from bench.serving.memory_speed import MemorySpeed
from bench.serving.sides import Side
from fastovms.load_test.timeline import Load


@dataclass(frozen=True, slots=True)
class Rounds:
    """What the rounds of a load came to: loads by the name of the side, and gigabytes a second of
    the machine's memory between the sides' turns, both round by round."""

    shape: LoadShape
    loads: dict[str, list[Load]]
    memory_speeds: list[list[float]] = field(default_factory=list)


def run_rounds(
    sides: Mapping[str, Side],
    shape: LoadShape,
    *,
    num_rounds: int,
    rng: random.Random,
    memory: MemorySpeed,
) -> Rounds:
    """Runs all sides in turn, once to warm up, and then for as many rounds.

    Raises:
        SystemExit: a side has not written as many tokens as it was asked for.
    """
    rounds = Rounds(shape, {name: [] for name in sides})
    for number in range(-1, num_rounds):
        requests = shape.draw(rng)
        expected = sum(request.num_output_tokens for request in requests)
        speeds = []
        for name, side in sides.items():
            speeds.append(memory.measure())
            load = side(requests)
            if load.num_tokens != expected:
                raise SystemExit(f"{name}: {load.num_tokens} output tokens, not {expected}")
            if number >= 0:
                rounds.loads[name].append(load)
        if number >= 0:
            rounds.memory_speeds.append(speeds)
    return rounds
