from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastovms.engine.draws import Wheel, draw, draw_nucleus, weights_of
from tests.engine.distributions import LOGITS, assert_drawn_from

NUM_DRAWS = 1500

Floats = NDArray[np.float32]


def logits_of(name: str, size: int) -> Floats:
    return LOGITS[name](np.random.default_rng(0), size).astype(np.float32)


def probabilities(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    return weights / weights.sum()


def exact_weights(logits: Floats, temperature: float = 1.0) -> NDArray[np.float64]:
    return np.exp((logits.astype(np.float64) - logits.max()) / temperature)


# Weights


@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 1e30])
def test_weights_are_exponentials_and_never_denormal(temperature: float) -> None:
    logits = np.array([3, 2.5, -50, -61.6, -90, -3e38, -np.inf], np.float32)
    with np.errstate(all="ignore"):
        weights = weights_of(logits, logits[0], temperature)
    np.testing.assert_allclose(weights, exact_weights(logits, temperature), rtol=2e-5, atol=2e-38)
    assert (weights >= np.finfo(np.float32).tiny).all()
    assert logits[2] == -50


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 2, 255, 256, 257, 512, 1000, 5000]),
    spread=st.sampled_from([0.1, 1.0, 5.0, 40.0]),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_a_wheel_stops_where_the_running_sum_passes(
    seed: int, size: int, spread: float, uniform: float
) -> None:
    logits = (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)
    weights = weights_of(logits, logits.max(), 1)
    edges = probabilities(weights.astype(np.float64)).cumsum()
    wheel = Wheel(weights)
    assert wheel.total == pytest.approx(weights.sum(dtype=np.float64), rel=1e-6)
    position = wheel.position(uniform)
    below = edges[position - 1] if position else 0.0
    assert below - 1e-6 <= uniform <= edges[position] + 1e-6


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("size", [3, 256, 512, 1000])
@pytest.mark.parametrize("possible", [0, 1, -1])
def test_a_wheel_never_stops_at_what_is_impossible(
    uniform: float, size: int, possible: int
) -> None:
    logits = np.full(size, -np.inf, np.float32)
    logits[possible] = 0
    weights = weights_of(logits, np.float32(0), 1)
    assert Wheel(weights).position(uniform) == possible % size


def test_a_wheel_that_stops_between_two_rows_is_on_what_is_possible() -> None:
    logits = np.full(512, -np.inf, np.float32)
    logits[[0, 511]] = 0
    assert Wheel(weights_of(logits, np.float32(0), 1)).position(0.5) == 511


def test_a_wheel_whose_rows_are_a_little_longer_than_their_weights_stops_in_time() -> None:
    """Sums in float32 may exceed those in float64: then there is a gap at a row's end."""
    num_gaps = 0
    for seed in range(20):
        weights = np.random.default_rng(seed).random(256, np.float32)
        weights[200:] = weights_of(np.array([-np.inf], np.float32), np.float32(0), 1)
        wheel = Wheel(weights)
        num_gaps += wheel.total * (1 - 2**-53) >= weights.cumsum(dtype=np.float64)[-1]
        assert wheel.position(1 - 2**-53) == 199
    assert num_gaps


# Draws from all tokens, of vocabularies for which not all are weighed, and of small ones


@pytest.mark.parametrize("size", [300, 70_000])
@pytest.mark.parametrize("name", LOGITS)
@pytest.mark.parametrize(
    ("temperature", "min_weight"), [(1.0, 0.0), (0.6, 0.0), (1.0, 0.03), (1.3, 0.6)]
)
def test_tokens_are_drawn_by_their_weights(
    name: str, size: int, temperature: float, min_weight: float
) -> None:
    logits = logits_of(name, size)
    weights = exact_weights(logits, temperature)
    # Whether rounding keeps what has just this weight is not the question.
    if (abs(weights - min_weight) < 1e-6).any():
        min_weight *= 1.001
    weights[weights < min_weight] = 0
    rng = np.random.default_rng(1)
    highest = logits.max()
    drawn = [draw(logits, highest, temperature, min_weight, rng) for _ in range(NUM_DRAWS)]
    assert_drawn_from(probabilities(weights), drawn)


@pytest.mark.parametrize("name", ["flat", "long tail", "one and a flat rest"])
def test_tokens_are_drawn_by_their_weights_in_the_long_run(name: str) -> None:
    """So that a few percent too many or too few would show."""
    logits = logits_of(name, 70_000)
    rng, highest = np.random.default_rng(2), logits.max()
    drawn = [draw(logits, highest, 1, 0, rng) for _ in range(20_000)]
    assert_drawn_from(probabilities(exact_weights(logits)), drawn)


def test_points_that_always_miss_do_not_go_on_for_ever() -> None:
    logits = np.zeros(70_000, np.float32)
    logits[4711] = 0.1
    rng = np.random.default_rng(0)
    drawn = {draw(logits, np.float32(0.1), 1, 0.99, rng) for _ in range(20)}
    assert drawn == {4711}


def test_points_on_the_bottom_of_a_slot_do_not_find_what_is_impossible() -> None:
    size = 2**17
    logits = np.full(size, -np.inf, np.float32)
    logits[4711] = 0
    places = np.append(np.arange(200) / size, [4711.5 / size])
    rng = Points(places)
    assert draw(logits, np.float32(0), 1, 0, rng) == 4711  # type: ignore[arg-type]
    assert rng.num_thrown == 1


class Points:
    """Stands in for a generator: the first of its points are at `places`, and none on a wheel."""

    def __init__(self, places: NDArray[np.float64]) -> None:
        self._places = places
        self.num_thrown = 0

    def random(self, shape: tuple[int, int]) -> NDArray[np.float64]:
        self.num_thrown += 1
        points = np.full(shape, 1 - 2**-53)
        points[1, : self._places.size] = self._places
        return points


def test_samples_that_mislead_do_no_harm() -> None:
    """The floor is taken from some logits: these are all that is likely here."""
    logits = np.full(70_000, -30, np.float32)
    logits[: 70_000 // 16 * 16].reshape(16, -1)[:, :64] = 0
    rng = np.random.default_rng(0)
    drawn = [draw(logits, np.float32(0), 1, 0, rng) for _ in range(NUM_DRAWS)]
    assert_drawn_from(probabilities(exact_weights(logits)), drawn)


def test_the_last_digits_of_logits_do_not_change_what_is_drawn() -> None:
    noise = np.random.default_rng(3)
    num_equal = 0
    for seed in range(200):
        logits = noise.normal(0, 2, 70_000).astype(np.float32)
        others = logits + noise.normal(0, 1e-6, logits.size).astype(np.float32)
        drawn = [
            draw(row, row.max(), 0.8, 0, np.random.default_rng(seed)) for row in (logits, others)
        ]
        num_equal += drawn[0] == drawn[1]
    assert num_equal >= 198


# The nucleus


@pytest.mark.parametrize("size", [3000, 50_000])
@pytest.mark.parametrize("name", LOGITS)
@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.9, 0.999])
def test_the_nucleus_is_that_of_a_full_sort(name: str, size: int, top_p: float) -> None:
    logits = logits_of(name, size)
    weights = weights_of(logits, logits.max(), 1)
    order = np.argsort(-weights, kind="stable")
    running = weights[order].cumsum(dtype=np.float64)
    missing = top_p * weights.sum(dtype=np.float64)
    num_kept = int(np.searchsorted(running, missing)) + 1
    expected = np.zeros(size)
    expected[order[:num_kept]] = weights[order[:num_kept]]
    rng = np.random.default_rng(0)
    drawn = [draw_nucleus(weights, top_p, 0.0, rng) for _ in range(200)]
    # Sums in another order may differ in their last digits.
    expected[order[num_kept - 1 : num_kept + 1]] += 1e-9
    assert_drawn_from(probabilities(expected), drawn)


@pytest.mark.parametrize("size", [300, 5000])
@pytest.mark.parametrize("name", LOGITS)
@pytest.mark.parametrize("top_p", [1e-9, 0.05, 0.5, 0.9])
@pytest.mark.parametrize("min_weight", [0.0, 0.2])
def test_the_nucleus_ends_where_it_should(
    name: str, size: int, top_p: float, min_weight: float
) -> None:
    """Whatever is thrown: the draws lead to each token in turn."""
    logits = logits_of(name, size)
    weights = weights_of(logits, logits.max(), 1)
    order = np.argsort(-weights, kind="stable")
    running = weights[order].cumsum(dtype=np.float64)
    num_kept = int(np.searchsorted(running, top_p * running[-1])) + 1
    edges = np.append(0.0, weights.cumsum(dtype=np.float64))
    num_checked = 0
    for rank in {0, num_kept // 2, num_kept - 2, num_kept - 1, num_kept, num_kept + 1, size - 1}:
        if not 0 <= rank < size or abs(running[rank - 1] / running[-1] - top_p) < 1e-7:
            continue
        position = int(order[rank])
        if weights[position] < 1e-6:
            continue
        uniform = (edges[position] + edges[position + 1]) / 2 / edges[-1]
        rng = Draws([uniform, *np.linspace(0.001, 0.999, 60)])
        drawn = draw_nucleus(weights, top_p, min_weight, rng)  # type: ignore[arg-type]
        is_kept = bool(rank < num_kept and weights[position] >= min_weight)
        assert (drawn == position) is is_kept
        assert (rng.num_drawn == 1) is is_kept
        num_checked += 1
    assert num_checked


@pytest.mark.parametrize("seed", range(4))
def test_the_nucleus_ends_within_equal_weights_where_it_should(seed: int) -> None:
    """Of many, so that float32 could not tell their sum."""
    logits = np.round(np.random.default_rng(seed).normal(0, 1, 256_000), 1).astype(np.float32)
    weights = weights_of(logits, logits.max(), 1)
    order = np.argsort(-weights, kind="stable")
    running = weights[order].cumsum(dtype=np.float64)
    edges = np.append(0.0, weights.cumsum(dtype=np.float64)) / running[-1]
    for top_p in (0.5, 0.9):
        last = int(np.searchsorted(running, top_p * running[-1]))
        for rank in (last - 1, last, last + 1, last + 2):
            before = running[rank - 1] / running[-1] / top_p - 1
            if abs(before) < 1e-6:
                continue
            position = int(order[rank])
            rng = Draws([(edges[position] + edges[position + 1]) / 2, *np.linspace(0, 0.99, 60)])
            draw_nucleus(weights, top_p, 0, rng)  # type: ignore[arg-type]
            assert (rng.num_drawn == 1) is bool(before < 0)


class Draws:
    """Stands in for a generator."""

    def __init__(self, values: list[float]) -> None:
        self._values = values
        self.num_drawn = 0

    def random(self) -> float:
        self.num_drawn += 1
        return self._values[self.num_drawn - 1]


def test_weights_that_are_no_numbers_still_give_a_position() -> None:
    weights = np.full(700, np.nan, np.float32)
    assert 0 <= draw_nucleus(weights, 0.5, 0.1, np.random.default_rng(0)) < 700
