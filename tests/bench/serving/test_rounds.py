from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from bench.serving.load_shape import LoadShape, Request
from bench.serving.rounds import Rounds, run_from_start, run_rounds
from bench.serving.sides import Side
from fastovms.errors import RequestFailed
from fastovms.parts.load_test.report import Load, Timeline

SHAPE = LoadShape(2, [4], [1])


def side(log: list[tuple[str, list[Request]]], name: str) -> Side:
    def run(requests: Sequence[Request]) -> Load:
        log.append((name, list(requests)))
        return Load.of([Timeline(0.0, [1.0]) for _ in requests])

    return run


def counter() -> Callable[[], float]:
    numbers = itertools.count(1.0)
    return lambda: next(numbers)


def run_quietly(sides: Mapping[str, Side], *, num_rounds: int, **further: Any) -> Rounds:
    return run_rounds(
        sides,
        further.pop("shape", SHAPE),
        num_rounds=num_rounds,
        rng=random.Random(0),
        rest=further.pop("rest", lambda: None),
        memory_speed=counter(),
        **further,
    )


def test_sides_take_turns_on_the_same_prompts_after_a_round_that_warms_up() -> None:
    log: list[tuple[str, list[Request]]] = []
    sides = {name: side(log, name) for name in "ab"}
    found = run_quietly(sides, num_rounds=2)
    assert [name for name, _ in log] == ["a", "b"] * 3
    sent = [requests for _, requests in log]
    assert sent[::2] == sent[1::2]
    assert len({str(requests) for requests in sent[::2]}) == 3
    assert {name: len(loads) for name, loads in found.loads.items()} == {"a": 2, "b": 2}
    assert found.memory_speeds == [[3.0, 4.0], [5.0, 6.0]]


def test_some_requests_at_once_warm_up() -> None:
    log: list[tuple[str, list[Request]]] = []
    shape = LoadShape(3, [4], [1], "poisson", 1.0)
    run_quietly({"a": side(log, "a")}, num_rounds=1, num_warm_up=2, shape=shape)
    (_, warm_up), (_, measured) = log
    assert [request.due for request in warm_up] == [0.0, 0.0]
    assert len(measured) == 3
    assert measured[-1].due > 0


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
        run_quietly(sides, num_rounds=1)
    assert str(ended.value) == message


def test_restarted_sides_get_the_same_rounds_until_time_is_over() -> None:
    log: list[tuple[str, list[Request]]] = []
    found = run_from_start(
        {name: partial(nullcontext, side(log, name)) for name in "ab"},
        SHAPE,
        seconds=2.5,
        num_starts=2,
        rng=random.Random(0),
        rest=lambda: None,
        memory_speed=counter(),
        clock=counter(),
    )
    assert [name for name, _ in log] == ["a", "a", "b", "b"] * 2
    sent = [requests for _, requests in log]
    assert sent[:2] == sent[2:4] != sent[4:6] == sent[6:8]
    assert {name: [load.num_tokens for load in loads] for name, loads in found.loads.items()} == {
        "a": [4, 4],
        "b": [4, 4],
    }
