from __future__ import annotations

import random
import statistics
from itertools import pairwise

import pytest

from fastovms.parts.load_test.config import arrival_times


def test_infinite_rate_sends_all_requests_at_once() -> None:
    assert arrival_times(3, float("inf"), 1.0, random.Random(0)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("number", [0, 1])
def test_load_of_at_most_one_request_starts_at_zero(number: int) -> None:
    assert arrival_times(number, 2.0, 1.0, random.Random(0)) == [0.0] * number


@pytest.mark.parametrize(("burstiness", "spread"), [(0.25, 2.0), (1.0, 1.0), (100.0, 0.1)])
def test_arrival_times_keep_the_rate_and_spread_the_intervals(
    burstiness: float, spread: float
) -> None:
    """The standard deviation of a gamma distribution is its mean over the root of its shape."""
    times = arrival_times(2001, 5.0, burstiness, random.Random(0))
    assert times[0] == 0
    assert times[-1] == pytest.approx(400)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert min(gaps) >= 0
    assert statistics.stdev(gaps) / 0.2 == pytest.approx(spread, rel=0.2)
