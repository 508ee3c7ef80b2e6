"""Kinds of guesses, and what is learned of them."""

from __future__ import annotations

import numpy as np
import pytest

from fastovms.parts.drafts.suffix_kernels import kind_of, learn, near_kind
from fastovms.parts.drafts.suffix_layout import FORCED, NUM_KINDS, NUM_SUPPORTS


@pytest.mark.slow
def test_each_kind_below_the_forced_one_is_of_some_guess() -> None:
    kinds = {kind_of(length, votes, 8) for length in range(1, 70) for votes in (2, 5, 8)}
    kinds |= {kind_of(length, 1, 1) for length in range(1, 70)}
    kinds |= {near_kind(length) for length in range(1, 70)}
    assert kinds == set(range(FORCED))


@pytest.mark.parametrize(
    ("votes", "num_voters", "support"), [(1, 3, 0), (2, 4, 1), (1, 1, 2), (3, 3, 3)]
)
def test_kind_of_a_match_encodes_its_support(votes: int, num_voters: int, support: int) -> None:
    assert kind_of(1, votes, num_voters) % NUM_SUPPORTS == support


@pytest.mark.parametrize(
    ("said", "right", "made"),
    [
        ([], [0, 0, 0], [0, 0, 0]),
        ([5, 6, 7], [1, 1, 1], [1, 1, 1]),
        ([5, 9, 7], [1, 0, 0], [1, 1, 0]),
    ],
)
def test_a_guess_is_compared_up_to_its_first_wrong_token(
    said: list[int], right: list[int], made: list[int]
) -> None:
    odds, own = np.zeros((2, NUM_KINDS)), np.zeros((2, NUM_KINDS))
    learn(odds, own, np.array([5, 6, 7]), np.array([0, 1, 2]), np.array(said, np.int64))
    for learned in (odds, own):
        assert learned[:, :3].tolist() == [right, made]
        assert not learned[:, 3:].any()
