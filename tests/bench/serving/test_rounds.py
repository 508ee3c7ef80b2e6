from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from bench.serving.load_shape import LoadShape, Request
from bench.serving.rounds import run_rounds
from bench.serving.sides import Side
from fastovms.client.request_failed import RequestFailed
from fastovms.load_test.timeline import Load, Timeline

SHAPE = LoadShape(2, [4], [1])


def side(log: list[tuple[str, list[Request]]], name: str) -> Side:
    def run(requests: Sequence[Request]) -> Load:
        log.append((name, list(requests)))
        return Load.of([Timeline(0.0, [1.0]) for _ in requests])

    return run


def counter() -> Callable[[], float]:
    numbers = itertools.count(1.0)
    return lambda: next(numbers)


def test_sides_take_turns_on_the_same_prompts_after_a_round_that_warms_up() -> None:
    log: list[tuple[str, list[Request]]] = []
    sides = {name: side(log, name) for name in "ab"}
    found = run_rounds(sides, SHAPE, num_rounds=2, rng=random.Random(0), memory_speed=counter())
    assert [name for name, _ in log] == ["a", "b"] * 3
    sent = [requests for _, requests in log]
    assert sent[::2] == sent[1::2]
    assert len({str(requests) for requests in sent[::2]}) == 3
    assert {name: len(loads) for name, loads in found.loads.items()} == {"a": 2, "b": 2}
    assert found.memory_speeds == [[3.0, 4.0], [5.0, 6.0]]


def refuse(requests: Sequence[Request]) -> Load:
    raise RequestFailed("HTTP 429", "too busy")


def end_early(requests: Sequence[Request]) -> Load:
    return Load.of([Timeline(0.0, [1.0])])


@pytest.mark.parametrize(
    ("broken", "message"),
    [(refuse, "b: HTTP 429: too busy"), (end_early, "b: 1 output tokens, not 2")],
)
def test_a_side_that_does_less_ends_it_by_name(broken: Side, message: str) -> None:
    sides = {"a": side([], "a"), "b": broken}
    with pytest.raises(SystemExit) as ended:
        run_rounds(sides, SHAPE, num_rounds=1, rng=random.Random(0), memory_speed=counter())
    assert str(ended.value) == message
