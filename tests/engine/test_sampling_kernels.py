from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastovms.engine import sampling_kernels, sampling_numpy
from fastovms.engine.model.model import RawLogits, as_bits, as_float32
from tests.engine.bf16 import bf16_bits
from tests.engine.distributions import LOGITS, assert_drawn_from

Floats = NDArray[np.float32]

NUM_DRAWS = 1500


def logits_of(name: str, size: int) -> Floats:
    return LOGITS[name](np.random.default_rng(0), size).astype(np.float32)


def draw(
    logits: RawLogits,
    seeds: Sequence[int] = range(NUM_DRAWS),
    position: int = 0,
    *,
    rows: Any = sampling_kernels,
    **settings: float,
) -> list[int]:
    """Returns a token for each seed from the same row, sampled by either implementation."""
    filters = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **settings}
    token_ids = np.full(len(seeds), -2)
    rows.draw_rows(
        *as_bits(logits[None]),
        np.zeros(len(seeds), np.int64),
        np.array([list(filters.values())] * len(seeds), np.float64),
        np.array(seeds, np.uint64),
        np.full(len(seeds), position),
        token_ids,
    )
    return token_ids.tolist()


either = pytest.mark.parametrize("rows", [sampling_kernels, sampling_numpy], ids=["jit", "numpy"])
"""NumPy computes rows until the kernels are compiled."""


def expected_probabilities(
    logits: Floats,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> NDArray[np.float64]:
    """Returns the probabilities by definition: temperature, top-k, top-p, min-p over a full stable
    sort. Tokens at a limit, which rounding decides, may be sampled but need not be."""
    exponents = (logits.astype(np.float64) - logits.max()) / temperature
    order = np.argsort(-logits, kind="stable")
    weights = np.exp(exponents)[order]
    weights[weights < 1e-30] = 0
    weights[top_k or weights.size :] = 0
    before = np.append(0, weights.cumsum()[:-1]) / weights.sum()
    doubts = (abs(before - top_p) < 1e-6) & (top_p < 1) | (abs(weights - min_p) < 1e-6) & (
        min_p > 0
    )
    weights = np.where((before < top_p) & (weights >= min_p), weights, 0)
    weights = np.where(doubts & (before > 0), weights.sum() * 1e-12, weights)
    probabilities = np.empty_like(weights)
    probabilities[order] = weights / weights.sum()
    return probabilities


# Draws


@pytest.mark.nightly(but=("-300]",))
@pytest.mark.slow
@pytest.mark.parametrize("size", [300, 70_000])
@pytest.mark.parametrize("name", LOGITS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.6},
        {"top_p": 0.9},
        {"top_p": 0.3, "temperature": 1.5},
        {"top_p": 0.01},
        {"top_p": 0.9999},
        {"top_k": 40},
        {"top_k": 1},
        {"top_k": 2000, "temperature": 0.8},
        {"top_k": 100_000},
        {"min_p": 0.03},
        {"min_p": 0.6, "temperature": 1.3},
        {"min_p": 0.99},
        {"top_k": 300, "top_p": 0.7},
        {"top_p": 0.8, "min_p": 0.1},
        {"top_k": 50, "top_p": 0.95, "min_p": 0.05, "temperature": 0.7},
    ],
    ids=str,
)
def test_tokens_are_drawn_as_likely_as_they_should_be(
    name: str, size: int, settings: dict[str, Any]
) -> None:
    logits = logits_of(name, size)
    num_draws = NUM_DRAWS if size == 300 else 300
    drawn = draw(logits, range(num_draws), **settings)
    assert_drawn_from(expected_probabilities(logits, **settings), drawn)


@pytest.mark.nightly(but=("long tail",))
@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"top_p": 0.8}], ids=str)
@pytest.mark.parametrize("name", ["flat", "long tail", "one and a flat rest"])
def test_tokens_are_drawn_as_likely_in_the_long_run(name: str, settings: dict[str, Any]) -> None:
    """A bias of a few percent would be found."""
    logits = logits_of(name, 3000)
    drawn = draw(logits, range(100_000), **settings)
    assert_drawn_from(expected_probabilities(logits, **settings), drawn)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGITS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.6, "top_p": 0.9},
        {"top_p": 0.01},
        {"top_k": 40},
        {"top_k": 300, "top_p": 0.7, "temperature": 1.3},
        {"min_p": 0.1},
        {"top_k": 50, "top_p": 0.95, "min_p": 0.05, "temperature": 0.7},
    ],
    ids=str,
)
def test_numpy_draws_the_tokens_that_kernels_draw(name: str, settings: dict[str, float]) -> None:
    logits = logits_of(name, 3000)
    seeds = [seed << 58 for seed in range(60)]
    for row in (logits, bf16_bits(logits)):
        found, expected = (
            draw(row, seeds, 7, rows=rows, **settings)
            for rows in (sampling_numpy, sampling_kernels)
        )
        # A token may be sampled where the sums of the two are rounded differently.
        assert sum(a != b for a, b in zip(found, expected, strict=True)) <= 1


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**40),
    size=st.sampled_from([1, 2, 63, 255, 256, 257, 512, 1000, 5000]),
    spread=st.sampled_from([0.1, 1.0, 5.0, 40.0]),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 3.0]),
)
def test_a_draw_is_where_the_running_sum_passes_a_number_made_of_seed_and_position(
    seed: int, position: int, size: int, spread: float, temperature: float
) -> None:
    logits = (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)
    (token_id,) = draw(logits, [seed], position, temperature=temperature)
    edges = expected_probabilities(logits, temperature=temperature).cumsum()
    uniform = first_uniform(seed, position)
    below = edges[token_id - 1] if token_id else 0.0
    # The weights are float32, and so are the sums of a group of them.
    assert below - 2e-6 <= uniform <= edges[token_id] + 2e-6


def first_uniform(seed: int, position: int) -> float:
    """Returns SplitMix64's first output: that of the position is the state of another generator."""
    state = mixed(seed + position * 0x9E3779B97F4A7C15)
    return ((mixed(state + 0x9E3779B97F4A7C15) >> 11) + 0.5) / 2**53


def mixed(state: int) -> int:
    state %= 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


def test_drawn_numbers_are_those_of_splitmix64() -> None:
    """The first output for seed 1234567, from the generator's reference implementation."""
    assert mixed(1234567 + 0x9E3779B97F4A7C15) == 6457827717110365317


@pytest.mark.parametrize("seeds", [range(2000), range(2**64 - 2000, 2**64)])
def test_positions_and_seeds_are_independent(seeds: Sequence[int]) -> None:
    logits = np.zeros(16, np.float32)
    texts = np.array([draw(logits, seeds, position) for position in range(8)])
    pairs = [(texts[i], texts[i + 1]) for i in range(7)] + [(row[:-1], row[1:]) for row in texts]
    for first, second in pairs:
        counts = np.bincount(first * 16 + second, minlength=256)
        expected = counts.sum() / 256
        statistic = float(((counts - expected) ** 2 / expected).sum())
        assert abs(statistic - 255) < 5 * math.sqrt(2 * 255)


@pytest.mark.parametrize("name", LOGITS)
@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.0}, {"top_k": 9, "top_p": 0.7}], ids=str
)
def test_bfloat16_is_drawn_from_as_the_same_float32(name: str, settings: dict[str, Any]) -> None:
    bits = bf16_bits(logits_of(name, 3000))
    assert draw(bits, **settings) == draw(as_float32(bits), **settings)


def test_the_last_digits_of_logits_do_not_change_what_is_drawn() -> None:
    noise = np.random.default_rng(3)
    logits = noise.normal(0, 2, 70_000).astype(np.float32)
    others = logits + noise.normal(0, 1e-6, logits.size).astype(np.float32)
    pairs = zip(draw(logits, range(200)), draw(others, range(200)), strict=True)
    assert sum(a == b for a, b in pairs) >= 198


@pytest.mark.slow
@pytest.mark.parametrize("top_p", [0.5, 0.9])
@pytest.mark.parametrize("seed", range(2))
def test_the_nucleus_ends_within_equal_weights_where_it_should(seed: int, top_p: float) -> None:
    """There are so many that float32 could not distinguish their sums."""
    logits = np.round(np.random.default_rng(seed).normal(0, 1, 256_000), 1).astype(np.float32)
    # The last tokens of the nucleus are most of it, and as many follow.
    logits[::3] = np.float32(0.5)
    logits[logits > 0.5] = np.float32(-9)
    expected = expected_probabilities(logits, top_p=top_p)
    num_equal = int((expected > 0).sum())
    assert 30_000 < num_equal < (logits == np.float32(0.5)).sum() or top_p == 0.9
    drawn = draw(logits, range(400), top_p=top_p)
    assert (expected[drawn] > 0).all()
    assert_drawn_from(expected, drawn)


@pytest.mark.parametrize("least", [np.finfo(np.float32).min, -3.401e38])
def test_lowest_finite_logits_are_drawn_over_minus_infinity(least: float) -> None:
    logits = np.full(300, -np.inf, np.float32)
    logits[[100, 200]] = least
    assert set(draw(logits, range(50))) == {100, 200}


# NaN and infinity


EXTREMES: list[list[float]] = [[1e38, -1e38], [3.4e38, -3.4e38], [-np.inf, 3.4e38]]
BROKEN: list[list[float]] = [
    [np.inf],
    [np.nan],
    [-np.nan],
    [np.inf, np.nan],
    [np.inf, -np.inf],
    [-np.nan, 5],
    [3.4e38, -np.nan],
]
FILTERS: list[dict[str, Any]] = [
    {},
    {"top_k": 1},
    {"top_k": 3, "top_p": 0.5},
    {"top_p": 0.5},
    {"min_p": 0.5},
    {"top_k": 690},
]


@either
@pytest.mark.parametrize("values", EXTREMES, ids=str)
@pytest.mark.parametrize("temperature", [1.1e-5, 1.0, 1e30, 1e300])
@pytest.mark.parametrize("settings", FILTERS, ids=str)
def test_extreme_logits_leave_a_token(
    rows: Any, values: list[float], temperature: float, settings: dict[str, Any]
) -> None:
    logits = np.linspace(-3, 3, 700, dtype=np.float32)
    logits[[3, 600]] = values[0], values[-1]
    assert 0 <= rows.likeliest(*as_bits(logits)) < 700
    drawn = draw(logits, range(20), rows=rows, temperature=temperature, **settings)
    assert all(0 <= token_id < 700 for token_id in drawn)


@either
@pytest.mark.parametrize("values", [*BROKEN, [-np.inf]], ids=str)
@pytest.mark.parametrize("others", [-3, 3, None], ids=str)
@pytest.mark.parametrize("settings", FILTERS, ids=str)
def test_draws_from_rows_with_invalid_logits_are_broken(
    rows: Any, values: list[float], others: float | None, settings: dict[str, Any]
) -> None:
    """In any position, beside numbers (unless these are None) or not. Minus infinity is only an
    impossible token, unless all logits are."""
    logits = np.full(700, values[0] if others is None else others, np.float32)
    logits[[3, 600]] = values[0], values[-1]
    is_broken = others is None or values != [-np.inf]
    for bits in (logits, bf16_bits(logits)):
        assert (rows.likeliest(*as_bits(bits)) == sampling_kernels.BROKEN) == is_broken
        drawn = draw(bits, range(20), rows=rows, **settings)
        assert {token_id == sampling_kernels.BROKEN for token_id in drawn} == {is_broken}


@either
@pytest.mark.parametrize(
    ("row", "likeliest"),
    [
        ([-3, -1, -2], 1),
        ([-0.0, -1, -2], 0),
        ([-1, 0.0, -2], 1),
        ([1, 3, 3], 1),
        ([-np.inf, -np.inf, -5], 2),
        ([*[-5] * 700, -4, *[-5] * 700, -4], 700),
        ([*[5] * 700, 6, *[5] * 700, 6], 700),
    ],
    ids=lambda value: str(value)[:30],
)
def test_the_first_of_the_largest_logits_is_the_likeliest(
    rows: Any, row: list[float], likeliest: int
) -> None:
    logits = np.array(row, np.float32)
    for bits in (logits, bf16_bits(logits)):
        assert rows.likeliest(*as_bits(bits)) == likeliest
        assert draw(bits, [1], rows=rows, top_k=1) == [likeliest]


@either
def test_the_likeliest_tokens_of_some_rows_are_found(rows: Any) -> None:
    logits = np.random.default_rng(0).normal(0, 2, (9, 1000)).astype(np.float32)
    chosen = np.array([4, 0, 8, 4])
    token_ids = np.full(4, -1)
    rows.likeliest_of_rows(*as_bits(logits), chosen, token_ids)
    assert (token_ids == logits[chosen].argmax(axis=1)).all()


# Log probabilities


def log_sum_exp_and_top(
    logits: RawLogits, k: int, rows: Any = sampling_kernels
) -> tuple[float, list[int]]:
    log_sum, ranks = rows.log_sum_exp_and_top(*as_bits(logits), k)
    return log_sum, (0xFFFFFFFF - (np.sort(ranks)[::-1] & 0xFFFFFFFF)).tolist()


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([-np.inf] * 700, (0, [0])),
        ([*[-np.inf] * 300, -7.25, *[-np.inf] * 300], (-7.25, [300])),
        ([1, np.nan, 2], None),
    ],
    ids=["nothing possible", "one possible", "nan"],
)
def test_log_sum_exp_of_extreme_rows(row: list[float], expected: tuple[float, list[int]] | None):
    found = log_sum_exp_and_top(np.array(row, np.float32), 1)
    assert math.isnan(found[0]) if expected is None else found == expected


@either
@pytest.mark.parametrize("size", [1, 255, 256, 257, 3000, 50_000])
@pytest.mark.parametrize("name", LOGITS)
def test_the_sum_and_the_largest_are_those_of_a_full_sort(rows: Any, name: str, size: int) -> None:
    logits = logits_of(name, size)
    order = np.argsort(-logits, kind="stable").tolist()
    exact = np.logaddexp.reduce(logits.astype(np.float64))
    for k in (0, 1, 2, 11, 12, 13, 195, 196, 255, 2999, size, size + 1):
        log_sum, top = log_sum_exp_and_top(logits, k, rows)
        assert log_sum == pytest.approx(exact, abs=2e-6)
        assert top == order[:k]
