from __future__ import annotations

import pytest

from fastovms.engine.drafting.draft_policy import DraftPolicy


def play(policy: DraftPolicy, num_tokens: int, share: float, num_running: int = 1) -> list[int]:
    """Generates `num_tokens` tokens of which `share` can be guessed, and returns the lengths of
    the drafts."""
    lengths = []
    length = 0
    while length < num_tokens:
        num_drafted = policy.num_tokens(length, num_running)
        num_accepted = int(share * num_drafted)
        length += 1 + num_accepted
        if num_drafted:
            lengths.append(num_drafted)
            policy.learn(num_drafted, num_accepted, length)
    return lengths


def test_a_fixed_number_is_not_adapted() -> None:
    assert set(play(DraftPolicy(3, cost=0.9), 50, 0, num_running=200)) == {3}


def test_drafts_grow_while_they_are_right() -> None:
    assert play(DraftPolicy(None), 30, 1) == [5, 6, 7, 8]


@pytest.mark.parametrize("tolerated_misses", [0, 3])
def test_drafts_that_are_wrong_become_short_and_rare(tolerated_misses: int) -> None:
    lengths = play(DraftPolicy(None, tolerated_misses=tolerated_misses), 2000, 0)
    assert lengths[:4] == [5, 3, 2, 2]
    assert 8 <= len(lengths) <= 16, "one at first, then after 8, 16, ... 256 tokens"


def test_it_recovers_from_a_pause() -> None:
    policy = DraftPolicy(None)
    play(policy, 2000, 0)
    for length in range(3000, 3100, 10):
        num_drafted = policy.num_tokens(length, 1)
        policy.learn(num_drafted, num_drafted, length)
    assert policy.num_tokens(4000, 1) == 8


def test_mediocre_drafts_pay_alone_but_not_in_a_crowd_or_at_a_price() -> None:
    always = len(play(DraftPolicy(None), 1000, 0.4))
    assert len(play(DraftPolicy(None), 1000, 0.4, num_running=80)) < 0.3 * always
    assert len(play(DraftPolicy(None, cost=0.5), 1000, 0.4)) < 0.3 * always


def test_in_a_crowd_what_is_not_proven_is_not_tried() -> None:
    policy = DraftPolicy(None)
    assert policy.may_try(1)
    assert not policy.may_try(8)
    policy.learn(5, 5, 10)
    assert policy.may_try(8)
    policy.learn(5, 3, 20)
    assert policy.may_try(8)
    policy.learn(5, 0, 30)
    assert policy.may_try(1)
    assert not policy.may_try(8)
    assert DraftPolicy(3).may_try(200), "a fixed number is the client's wish"


def test_drafting_that_costs_as_much_as_it_saves_is_never_tried() -> None:
    assert play(DraftPolicy(None, cost=1.0), 1000, 1) == []
