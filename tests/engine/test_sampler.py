from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastovms.engine.raw_logits import likeliest
from fastovms.engine.sampler import GREEDY_TEMPERATURE, choose
from fastovms.engine.sequence import Sequence
from fastovms.params import SamplingParams
from tests.engine.distributions import assert_drawn_from


def row(params: SamplingParams, seed: int = 0) -> Sequence:
    return Sequence(0, "r", 0, [1], params, token_limit=9, rng=np.random.default_rng(seed))


def sample(logits: NDArray[np.float32], sequences: list[Sequence]) -> list[int]:
    rows = zip(logits, likeliest(logits), sequences, strict=True)
    with np.errstate(all="ignore"):
        return [choose(row_logits, token_id, sequence) for row_logits, token_id, sequence in rows]


def expected_probabilities(
    logits: NDArray[np.float32], params: SamplingParams
) -> NDArray[np.float64]:
    """The plain definition: temperature, top-k, top-p, min-p over a full stable sort."""
    scaled = logits.astype(np.float64) / params.temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-weights, kind="stable")
    keep = np.zeros(logits.size, bool)
    keep[order[: params.top_k or None]] = True
    weights = np.where(keep, weights, 0)
    if params.top_p < 1:
        running = weights[order].cumsum()
        num_kept = np.searchsorted(running, params.top_p * running[-1]) + 1
        keep[order[num_kept:]] = False
        weights = np.where(keep, weights, 0)
    weights = np.where(weights >= params.min_p * weights.max(), weights, 0)
    return weights / weights.sum()


@dataclass
class FixedDraw:
    """Stands in for a generator: every draw is `value`."""

    value: float

    def random(self) -> float:
        return self.value


def token_at(logits: NDArray[np.float32], params: SamplingParams, draw: float) -> int:
    sequence = row(params)
    sequence.rng = FixedDraw(draw)  # type: ignore[assignment]
    (token_id,) = sample(logits[None], [sequence])
    return token_id


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 2, 63, 257, 512, 1000, 5000]),
    spread=st.sampled_from([0.1, 1.0, 5.0]),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 5, 40, 2000]),
    min_p=st.sampled_from([0.0, 0.02, 0.5]),
)
def test_every_draw_gives_the_token_of_the_plain_definition(
    seed: int,
    size: int,
    spread: float,
    temperature: float,
    top_k: int,
    min_p: float,
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(size) * spread).astype(np.float32)
    params = SamplingParams(temperature=temperature, top_k=top_k, min_p=min_p)
    edges = expected_probabilities(logits, params).cumsum()
    for draw in rng.random(5):
        token_id = token_at(logits, params, draw)
        below = edges[token_id - 1] if token_id else 0.0
        # float32 weights: the edges agree to a few units in the sixth place.
        assert below - 2e-5 <= draw <= edges[token_id] + 2e-5


@pytest.mark.parametrize("temperature", [0.0, GREEDY_TEMPERATURE])
def test_greedy_takes_the_likeliest(temperature: float) -> None:
    logits = np.array([[0, 3, 1], [9, 3, 1]], np.float32)
    assert sample(logits, [row(SamplingParams(temperature=temperature))] * 2) == [1, 0]


def test_rows_are_independent() -> None:
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((3, 300)).astype(np.float32)
    params = [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(top_k=3, top_p=0.9),
    ]
    together = sample(logits, [row(p) for p in params])
    alone = [sample(logits[i : i + 1], [row(p)])[0] for i, p in enumerate(params)]
    assert together == alone


@pytest.mark.parametrize("top_k", [0, 40, 2000])
@pytest.mark.parametrize("min_p", [0.0, 0.1])
def test_top_p_is_of_what_top_k_leaves_and_min_p_of_the_likeliest(top_k: int, min_p: float) -> None:
    logits = np.random.default_rng(2).normal(0, 2, 3000).astype(np.float32)
    params = SamplingParams(temperature=0.8, top_k=top_k, top_p=0.7, min_p=min_p)
    expected = expected_probabilities(logits, params)
    sequence = row(params)
    drawn = sample(np.broadcast_to(logits, (2000, logits.size)), [sequence] * 2000)
    assert_drawn_from(expected, drawn)


@pytest.mark.parametrize("draw", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("size", [3, 1000])
def test_impossible_tokens_are_never_drawn(draw: float, size: int) -> None:
    logits = np.full(size, -np.inf, np.float32)
    logits[1] = 0
    assert token_at(logits, SamplingParams(), draw) == 1


def test_extreme_temperatures_do_not_overflow() -> None:
    logits = np.array([-3e38, 3e38, 1, 2], np.float32)
    assert token_at(logits, SamplingParams(temperature=1.1e-5), 0.999) == 1
    assert token_at(logits, SamplingParams(temperature=1e30), 0.999) in range(4)


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e38, -1e38])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.5}])
def test_overflowing_logits_still_give_a_token(value: float, filters: dict[str, float]) -> None:
    logits = np.linspace(-3, 3, 700, dtype=np.float32)
    logits[[3, 600]] = value
    assert 0 <= token_at(logits, SamplingParams(**filters), 0.7) < 700  # type: ignore[arg-type]


def test_a_penalty_that_overflows_still_gives_a_token() -> None:
    params = SamplingParams(repetition_penalty=1e-46, top_p=0.5, min_p=0.5)
    assert 0 <= token_at(np.linspace(-3, 3, 700, dtype=np.float32), params, 0.7) < 700


def test_logits_whose_probabilities_are_wanted_are_left_alone() -> None:
    logits = np.arange(10, dtype=np.float32)[None]
    before = logits.copy()
    sample(logits, [row(SamplingParams(logprobs=0, logit_bias=((3, 5.0),)))])
    assert (logits == before).all()


@pytest.mark.parametrize("nan", [np.nan, -np.nan])
@pytest.mark.parametrize(
    "settings", [{}, {"top_k": 1}, {"top_k": 3, "top_p": 0.5}, {"top_p": 0.5}, {"min_p": 0.5}]
)
def test_a_logit_that_is_no_number_still_leaves_a_token(
    nan: float, settings: dict[str, float]
) -> None:
    logits = np.linspace(-3, 3, 700, dtype=np.float32)
    logits[5] = nan
    assert 0 <= token_at(logits, SamplingParams(**settings), 0.7) < 700  # type: ignore[arg-type]
