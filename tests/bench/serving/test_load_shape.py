from __future__ import annotations

import random

import pytest

from bench.serving.load_shape import LoadShape


def dues(shape: LoadShape, seed: int = 0) -> list[float]:
    return [request.due for request in shape.draw(random.Random(seed))]


def test_requests_take_lengths_in_turn_and_prompts_are_new_in_each_round() -> None:
    shape = LoadShape(5, [3, 7], [1, 2, 4])
    rng = random.Random(0)
    first, second = shape.draw(rng), shape.draw(rng)
    assert [len(request.prompt) for request in first] == [3, 7, 3, 7, 3]
    assert [request.num_output_tokens for request in first] == [1, 2, 4, 1, 2]
    assert [request.prompt for request in first] != [request.prompt for request in second]
    assert first == shape.draw(random.Random(0))


def test_poisson_arrivals_keep_the_rate() -> None:
    times = dues(LoadShape(41, [1], [1], "poisson", rate=4.0))
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-1] == pytest.approx(40 / 4.0)
    assert len(set(times)) == 41
    assert times != dues(LoadShape(41, [1], [1], "poisson", rate=4.0), seed=1)


@pytest.mark.parametrize(
    ("num_requests", "burst_size", "sizes"),
    [(12, 4, [4, 4, 4]), (10, 4, [4, 4, 2]), (3, 8, [3]), (3, 1, [1, 1, 1])],
)
def test_bursts_come_together_and_keep_the_rate(
    num_requests: int, burst_size: int, sizes: list[int]
) -> None:
    times = dues(LoadShape(num_requests, [1], [1], "bursts", rate=8.0, burst_size=burst_size))
    starts = sorted(set(times))
    assert [times.count(start) for start in starts] == sizes
    assert starts[-1] == pytest.approx((len(sizes) - 1) * burst_size / 8.0)
