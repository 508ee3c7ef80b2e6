"""Tests of `fastovms/backend_stats.py`."""

from __future__ import annotations

import pytest

from fastovms.backend_stats import BackendStats, Histogram

# Series that statistics declare, and histograms.


@pytest.mark.parametrize(
    ("value", "counts"), [(0.5, [1, 1, 1]), (1.0, [1, 1, 1]), (1.5, [0, 1, 1]), (9.0, [0, 0, 1])]
)
def test_a_value_is_in_each_bucket_whose_bound_it_does_not_exceed(
    value: float, counts: list[int]
) -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(value)
    assert histogram.buckets() == ([("1.0", counts[0]), ("2.0", counts[1]), ("+Inf", 1.0)], value)


def test_histograms_are_added() -> None:
    first, second = Histogram((1.0,)), Histogram((1.0,))
    first.observe(0.5, 3)
    second.observe(2.0)
    first.add(second)
    assert first.count == 4
    assert first.buckets() == ([("1.0", 3.0), ("+Inf", 4.0)], 3.5)
    assert second.count == 1


# What is computed of a backend's numbers.


@pytest.mark.parametrize(
    ("num_blocks", "num_free_blocks", "usage"), [(0, 0, 0.0), (10, 10, 0.0), (10, 4, 0.6)]
)
def test_the_share_of_the_cache_in_use(num_blocks: int, num_free_blocks: int, usage: float) -> None:
    stats = BackendStats(num_blocks=num_blocks, num_free_blocks=num_free_blocks)
    assert stats.kv_cache_usage == usage
