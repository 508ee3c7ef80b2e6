"""How the memory of request bodies is shared out."""

from __future__ import annotations

import random

import pytest

from fastovms.http.parsing.body_budget import BodyBudget


def test_a_client_holds_no_more_than_is_left_for_all_others() -> None:
    budget = BodyBudget(100)
    assert not budget.take("a", 51)
    assert budget.take("a", 50)
    assert not budget.take("a", 1)
    assert budget.take("b", 25)
    assert not budget.take("b", 1)
    budget.give_back("a", 50)
    assert budget.take("b", 12)
    budget.check()


@pytest.mark.parametrize("num_hogs", [1, 2, 9])
def test_a_small_body_finds_room_however_many_hold_all_that_they_may(num_hogs: int) -> None:
    budget = BodyBudget(1000)
    hogs = [f"hog {number}" for number in range(num_hogs)]
    while sum(budget.take(hog, 1) for hog in hogs):
        pass
    assert budget.take("small", 1000 // (num_hogs + 2) // 2)
    budget.check()


def test_random_operations() -> None:
    rng = random.Random(1)
    budget = BodyBudget(1000)
    taken: list[tuple[str, int]] = []
    for _ in range(5000):
        if taken and rng.random() < 0.45:
            budget.give_back(*taken.pop(rng.randrange(len(taken))))
        else:
            body = (rng.choice("abcd"), rng.randrange(1, 200))
            if budget.take(*body):
                taken.append(body)
        budget.check()
    for body in taken:
        budget.give_back(*body)
    budget.check()
    assert budget.used == 0
