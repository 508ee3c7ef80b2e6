"""What work of a size costs, by noisy measurements of some sizes."""

from __future__ import annotations

import random

import pytest

from fastovms.engine.scheduling.cost_curve import CostCurve


def curve(*samples: tuple[int, float], starts_at_zero: bool = True) -> CostCurve:
    """A curve that has learned each sample twice: the first of a size is provisional."""
    made = CostCurve(starts_at_zero=starts_at_zero)
    for size, seconds in samples:
        made.learn(size, seconds)
        made.learn(size, seconds)
    return made


@pytest.mark.parametrize(
    ("size", "seconds"), [(5, 1.0), (10, 2.0), (15, 3.5), (20, 5.0), (100, 245.0), (120, 305.0)]
)
def test_between_known_sizes_it_interpolates_and_beyond_them_goes_on(
    size: int, seconds: float
) -> None:
    assert curve((10, 2.0), (20, 5.0)).seconds(size, beyond=3.0) == pytest.approx(seconds)


def test_nothing_known_and_below_what_is_known() -> None:
    assert CostCurve(starts_at_zero=True).seconds(4) is None
    assert curve((8, 3.0), starts_at_zero=False).seconds(1) == 3.0


def test_what_has_not_been_measured_for_long_is_forgotten() -> None:
    made = CostCurve(starts_at_zero=True, memory=20)
    made.learn(100, 90.0)
    made.learn(100, 90.0)
    for _ in range(20):
        made.learn(8, 2.0)
        assert made.knows(100)
    made.learn(8, 2.0)
    assert not made.knows(100)
    assert made.seconds(100, beyond=0.5) == 48.0


def test_a_size_that_was_measured_once_does_not_count_beside_others() -> None:
    made = curve((10, 2.0), (20, 4.0))
    made.learn(14, 50.0)
    assert made.seconds(15) == 3.0


def test_the_first_of_a_size_counts_until_there_is_another() -> None:
    made = CostCurve(starts_at_zero=True)
    made.learn(8, 90.0)
    assert made.knows(9)
    assert not made.knows(10)
    assert made.seconds(8) == 90.0
    made.learn(8, 2.0)
    assert made.seconds(8) == 2.0


def test_outliers_do_not_count_and_the_past_is_forgotten() -> None:
    made = CostCurve(starts_at_zero=True)
    for seconds in [2.0, 2.0, 2.0, 50.0, 2.0]:
        made.learn(8, seconds)
    assert made.seconds(8) == 2.0
    for _ in range(20):
        made.learn(8, 3.0)
    assert made.seconds(8) == 3.0


def test_sizes_are_few_and_estimates_near_a_line_of_noisy_measurements() -> None:
    rng = random.Random(0)
    made = CostCurve(starts_at_zero=False)
    for _ in range(20_000):
        size = rng.randint(1, 2048)
        made.learn(size, (10 + size) * rng.choice([1.0, 1.0, 1.0, 1.05, 0.95, 4.0]))
    for size in (1, 3, 17, 100, 999, 2000):
        assert made.seconds(size, beyond=1.0) == pytest.approx(10 + size, rel=0.1)
    assert len(made._samples) <= 4 * 12
