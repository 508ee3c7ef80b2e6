from __future__ import annotations

import pytest

from fastovms.engine.scheduling.sequence import Sequence
from fastovms.engine.scheduling.waiting import WaitingQueue, rank_of
from fastovms.params import GenerationRequest, SamplingParams


def sequence(arrival: int, priority: int = 0, index: int = 0) -> Sequence:
    return Sequence(
        0,
        GenerationRequest(f"{arrival}", [1], SamplingParams()),
        index,
        token_limit=9,
        rank=rank_of(arrival, priority),
    )


@pytest.mark.parametrize(
    ("priorities", "order"),
    [
        ([0, 0, 0], [0, 1, 2]),
        ([0, 1, -1], [2, 0, 1]),
        ([2, 1, 1, 0], [3, 1, 2, 0]),
        ([10**18, 0, -(10**18)], [2, 1, 0]),
    ],
)
def test_lower_priorities_first_then_first_come(priorities: list[int], order: list[int]) -> None:
    queue = WaitingQueue()
    for arrival, priority in enumerate(priorities):
        queue.add(sequence(arrival, priority))
    assert [int(s.request_id) for s in queue] == order
    assert queue.first.request_id == str(order[0])


def test_samples_stay_in_order_and_preempted_ones_come_first() -> None:
    queue = WaitingQueue()
    samples = [sequence(1, index=i) for i in range(3)]
    for sample in samples:
        queue.add(sample)
    first = queue.first
    queue.remove(first)
    queue.put_back(first)
    queue.add(sequence(0))
    assert [(s.request_id, s.index) for s in queue] == [("0", 0), ("1", 0), ("1", 1), ("1", 2)]


def test_nobody_starves() -> None:
    """However many of the highest priority keep coming, an early arrival is not passed by all."""
    assert rank_of(0, 10**9) < rank_of(10**6, -(10**9))
