"""Clients wait for one another in turn, and nobody's items fill the queue."""

from __future__ import annotations

import random

import pytest

from fastovms.errors import Overloaded
from fastovms.fair_queue import FairQueue, Shares


def filled(items: str, *, per_client: int = 9, total: int = 99) -> FairQueue[str]:
    """`items` are pairs of a client and a number: "a1 b1"."""
    queue: FairQueue[str] = FairQueue("things", per_client=per_client, total=total)
    for item in items.split():
        queue.add(item[0], item)
    return queue


def drained(queue: FairQueue[str]) -> str:
    taken = []
    while (item := queue.take()) is not None:
        taken.append(item)
    return " ".join(taken)


@pytest.mark.parametrize(
    ("added", "taken"),
    [
        ("", ""),
        ("a1 a2 a3", "a1 a2 a3"),
        ("a1 a2 a3 b1", "a1 b1 a2 a3"),
        ("a1 a2 b1 c1 b2 c2 c3", "a1 b1 c1 a2 b2 c2 c3"),
    ],
)
def test_clients_take_turns(added: str, taken: str) -> None:
    assert drained(filled(added)) == taken


def test_served_client_waits_for_the_others() -> None:
    queue = filled("a1 a2 b1")
    assert queue.take() == "a1"
    queue.add("c", "c1")
    assert drained(queue) == "b1 a2 c1"


def test_client_that_comes_during_a_turn_has_the_next_one() -> None:
    queue = filled("a1 a2 a3")
    assert queue.take() == "a1"
    queue.add("b", "b1")
    queue.add("b", "b2")
    assert drained(queue) == "b1 a2 b2 a3"


def test_client_beyond_its_limit_is_refused() -> None:
    queue = filled("a1 a2 b1", per_client=2)
    with pytest.raises(Overloaded, match="2 things of this client are waiting already"):
        queue.add("a", "a3")
    queue.add("b", "b2")


def test_a_full_queue_makes_room_at_the_cost_of_who_has_most() -> None:
    queue = filled("a1 a2 a3 b1", total=4)
    assert queue.add("c", "c1") == "a3"
    with pytest.raises(Overloaded, match="4 things are waiting already"):
        queue.add("b", "b2")  # which would have as many as the one who had to make room
    assert drained(queue) == "a1 b1 c1 a2"


def test_discarded_items_are_not_returned() -> None:
    queue = filled("a1 a2 b1")
    for client, item in (("a", "a1"), ("b", "b1"), ("b", "b1"), ("z", "z1")):
        queue.discard(client, item)
    assert drained(queue) == "a2"


@pytest.mark.parametrize("seed", range(20))
def test_the_books_are_right_whatever_is_done(seed: int) -> None:
    rng = random.Random(seed)
    queue: FairQueue[int] = FairQueue("things", per_client=4, total=10)
    waiting: dict[int, str] = {}
    for item in range(500):
        action = rng.random()
        client = rng.choice("abcdef")
        if action < 0.6:
            try:
                displaced = queue.add(client, item)
            except Overloaded:
                continue
            waiting[item] = client
            if displaced is not None:
                del waiting[displaced]
        elif action < 0.9:
            taken = queue.take()
            assert (taken is None) == (not waiting)
            waiting.pop(taken if taken is not None else -1, None)
        elif waiting:
            gone = rng.choice(list(waiting))
            queue.discard(waiting.pop(gone), gone)
        queue.check()
        assert len(queue) == len(waiting)
    assert sorted(queue.clear()) == sorted(waiting)
    queue.check()


@pytest.mark.parametrize(("limit", "others"), [(1, [1, 0]), (4, [2, 1]), (100, [50, 25])])
def test_one_owner_takes_all_places_and_others_still_find_some(
    limit: int, others: list[int]
) -> None:
    shares = Shares.of_places(limit)
    taken = []
    for owner in ("first", "second", "third"):
        while shares.take(owner):
            pass
        taken.append(shares.held(owner))
    assert taken == [limit, *others]
    shares.check()
    for owner in ("first", "second", "third"):
        shares.give_back(owner, shares.held(owner))
    assert shares.used == 0


def test_a_client_whose_item_has_to_wait_holds_up_no_other() -> None:
    queue = filled("a1 a2 b1")
    assert queue.take(lambda client, item: client != "a") == "b1"
    assert queue.take(lambda client, item: False) is None
    assert drained(queue) == "a1 a2"
