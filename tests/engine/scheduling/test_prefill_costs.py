"""What pieces of prompts add to steps."""

from __future__ import annotations

import random

import pytest

from fastovms.engine.scheduling.prefill_costs import PrefillCosts


def seconds_of(num_tokens: int, context: float, growth: float = 1 / 2000) -> float:
    return num_tokens * 0.0004 * (1 + context * growth)


def test_nothing_is_known_at_first() -> None:
    costs = PrefillCosts()
    assert costs.seconds(10, 0) is None
    assert costs.token_seconds is None
    assert costs.num_tokens_within(0.0, 0, 256) == 256


@pytest.mark.parametrize("growth", [0.0, 1 / 5000, 1 / 1000])
def test_noisy_pieces_of_prompts_teach_lengths_and_contexts(growth: float) -> None:
    rng = random.Random(0)
    costs = PrefillCosts()
    for _ in range(6):
        start = 0
        while start < 4000:
            num_tokens = rng.choice([40, 100, 100, 250])
            context = start + num_tokens / 2
            noise = rng.choice([0.95, 1.0, 1.0, 1.0, 1.05, 3.0])
            costs.learn(num_tokens, context, noise * seconds_of(num_tokens, context, growth))
            start += num_tokens
    for num_tokens in (40, 100, 250):
        for context in (100, 2000, 3900):
            expected = pytest.approx(seconds_of(num_tokens, context, growth), rel=0.2)
            assert costs.seconds(num_tokens, context) == expected


def test_how_many_tokens_fit() -> None:
    costs = PrefillCosts()
    for start in (0, 100, 200, 1000, 1100, 1200):
        costs.learn(100, start + 50, seconds_of(100, start + 50))
    for start in (0, 1000, 4000):
        most = costs.num_tokens_within(0.03, start, 256)
        assert seconds_of(most, start + most / 2) == pytest.approx(0.03, rel=0.05)
    assert costs.num_tokens_within(1.0, 0, 256) == 256
    assert costs.num_tokens_within(0.0, 0, 256) == 0


def test_short_pieces_say_nothing_of_contexts() -> None:
    """What every step costs that has any makes them dear."""
    costs = PrefillCosts()
    costs.learn(100, 50, 0.04)
    costs.learn(100, 50, 0.04)
    for _ in range(20):
        costs.learn(3, 2000, 0.01)
    assert costs.seconds(100, 4000) == pytest.approx(0.04)
