"""Tests of `bench/replay/tree_drafts.py`."""

from __future__ import annotations

import random

import pytest

from bench.replay.session import Session, Turn
from bench.replay.tree_drafts import COSTS, MAX_CHILDREN, Index, drafted, play, seconds

CHEAP = (1.0, 1.0, 1.0, 1.0)
"""Rows that cost nothing."""


def test_costs_are_measured_ones_between_them_and_openvinos_beyond() -> None:
    costs = COSTS["kernels, VNNI"]
    assert [seconds(costs, n) for n in (1, 3, 8)] == pytest.approx([0.0051, 0.00545, 0.009])
    assert seconds(costs, 10) == pytest.approx(0.0221 + 2 * 0.001325)


def test_a_chain_takes_the_most_frequent_continuations_and_a_tree_others_too() -> None:
    index = Index()
    index.extend((1, 2, 3, 1, 2, 4, 1, 2, 4), 0)
    chain = drafted(index, (1, 2), CHEAP, 1)
    tree = drafted(index, (1, 2), CHEAP, MAX_CHILDREN)
    assert {(4,), (4, 1), (4, 1, 2)} <= chain
    assert (3,) not in chain
    assert (3,) in tree
    assert all(path[:-1] in tree for path in tree if len(path) > 1)


def test_rows_that_cost_too_much_are_not_drafted() -> None:
    index = Index()
    index.extend((1, 2, 3) * 4, 0)
    assert drafted(index, (1, 2), (1.0, 9.0, 20.0, 40.0), 1) == set()


def test_a_tree_gains_where_each_token_has_two_continuations() -> None:
    rng = random.Random(0)
    text = tuple(10 * (i % 5) + rng.randrange(2) for i in range(2000))
    session = Session((Turn(text[:500], text[500:]),))
    chain, tree = (play([session], CHEAP, width)[0] for width in (1, MAX_CHILDREN))
    assert chain > 1500, "1,000 tokens a second without drafts"
    assert tree > 1.2 * chain
