from __future__ import annotations

import pytest

from fastovms.engine.drafting.draft_policy import DraftPolicy
from fastovms.engine.scheduling.step_costs import StepCosts
from tests.engine.drafting.test_draft_lengths import costs


def play(
    policy: DraftPolicy, num_tokens: int, share: float, row_seconds: float = 0.0005
) -> list[int]:
    """Generates `num_tokens` tokens of which `share` can be guessed, and returns the lengths of
    the drafts."""
    known = costs(1, row_seconds)
    lengths = []
    length = 0
    while length < num_tokens:
        num_drafted = policy.plan(length, known, num_sequences=1, max_tokens=32).num_tokens
        num_accepted = int(share * num_drafted)
        length += 1 + num_accepted
        if num_drafted:
            lengths.append(num_drafted)
            policy.learn(num_drafted, num_accepted, length)
    return lengths


def test_a_fixed_number_is_not_adapted() -> None:
    assert set(play(DraftPolicy(3, cost=0.9), 50, 0, row_seconds=1)) == {3}


def test_drafts_grow_while_they_are_right() -> None:
    lengths = play(DraftPolicy(None), 300, 1)
    assert lengths == sorted(lengths)
    assert lengths[0] < 6
    assert lengths[-1] > 20


@pytest.mark.parametrize("tolerated_misses", [0, 3])
def test_drafts_that_are_wrong_become_short_and_rare(tolerated_misses: int) -> None:
    lengths = play(DraftPolicy(None, tolerated_misses=tolerated_misses), 2000, 0)
    assert 8 <= len(lengths) <= 16, "one at first, then after 8, 16, ... 256 tokens"
    assert set(lengths[tolerated_misses + 1 :]) == {2}


def test_it_recovers_from_a_pause() -> None:
    policy = DraftPolicy(None)
    play(policy, 2000, 0)
    known = costs(1, 0.0005)
    for length in range(3000, 3100, 10):
        planned = policy.plan(length, known, num_sequences=1, max_tokens=32)
        policy.learn(planned.num_tokens, planned.num_tokens, length)
    assert policy.plan(4000, known, num_sequences=1, max_tokens=32).num_tokens > 8


def test_mediocre_drafts_pay_where_rows_are_cheap_but_not_where_they_are_dear() -> None:
    always = len(play(DraftPolicy(None), 1000, 0.4))
    assert len(play(DraftPolicy(None), 1000, 0.4, row_seconds=0.01)) < 0.3 * always
    assert len(play(DraftPolicy(None, cost=0.7), 1000, 0.4)) < 0.3 * always


def test_drafting_that_costs_as_much_as_it_saves_is_never_tried() -> None:
    assert play(DraftPolicy(None, cost=1.0), 1000, 1) == []


def test_a_cost_that_was_too_high_is_found_out_by_the_draft_model_too() -> None:
    policy, known = DraftPolicy(None), StepCosts()
    for num_tokens in (256, 256):
        known.learn(num_decodes=0, num_rows=0, num_prefill_tokens=num_tokens, seconds=0.256)
    lengths = []
    for length in range(2000):
        planned = policy.plan(length, known, num_sequences=1, max_tokens=8).num_tokens
        seconds = 0.010 + 0.001 * planned + 0.2 * (0 < len(lengths) < 4)
        known.learn(num_decodes=1, num_rows=1 + planned, num_prefill_tokens=0, seconds=seconds)
        if planned:
            lengths.append(planned)
            policy.learn(planned, planned, length)
    assert 900 < len(lengths) < 1995, "nearly all again, except those without which none is told"
