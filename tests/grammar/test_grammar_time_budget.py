"""What a grammar may take of the engine's time."""

from __future__ import annotations

import contextlib

import pytest

from fastovms.grammar.grammar_time_budget import FREE_SECONDS, MAX_SECONDS, GrammarTimeBudget


@pytest.mark.parametrize(
    ("seconds", "is_used_up"),
    [
        ([FREE_SECONDS * 0.9] * 10_000, False),  # most tokens are free
        ([MAX_SECONDS], False),
        ([MAX_SECONDS + 2 * FREE_SECONDS], True),
        ([MAX_SECONDS / 2 + 2 * FREE_SECONDS] * 2, True),
        ([-1.0, MAX_SECONDS + 2 * FREE_SECONDS], True),  # a clock that goes back gives nothing
    ],
)
def test_what_is_beyond_the_free_time_of_a_token_counts(
    seconds: list[float], is_used_up: bool
) -> None:
    now = 0.0
    budget = GrammarTimeBudget(lambda: now)
    for taken in seconds:
        assert not budget.is_used_up
        with budget:
            now += taken
    assert budget.is_used_up is is_used_up


def test_a_token_that_fails_counts_too() -> None:
    now = 0.0
    budget = GrammarTimeBudget(lambda: now)
    with contextlib.suppress(ValueError), budget:
        now += MAX_SECONDS + 1
        raise ValueError
    assert budget.is_used_up
