from __future__ import annotations

import random

import pytest

from fastovms.backends.encoder.text_queue import TextQueue


def lengths(batch):
    return [text.length for text in batch]


def test_a_batch_has_about_equal_lengths():
    queue = TextQueue()
    queue.add("a", "job", [100, 20, 95, 90, 30, 84])
    assert lengths(queue.next_batch(1000)) == [100, 95, 90]
    assert lengths(queue.next_batch(1000)) == [84]
    assert lengths(queue.next_batch(1000)) == [30]
    assert lengths(queue.next_batch(1000)) == [20]
    assert queue.next_batch(1000) == []


@pytest.mark.parametrize(
    ("max_tokens", "num"), [(1, 1), (31, 1), (32, 2), (63, 2), (64, 4), (1000, 6)]
)
def test_tokens_bound_a_batch(max_tokens, num):
    queue = TextQueue()
    queue.add("a", "job", [10] * 6)
    assert len(queue.next_batch(max_tokens)) == num


def test_clients_take_turns():
    queue = TextQueue()
    queue.add("a", "long", [10] * 4)
    queue.add("b", "short", [500] * 2)
    served = [queue.next_batch(10)[0].job for _ in range(6)]
    assert served == ["long", "short", "long", "short", "long", "long"]


def test_texts_of_several_clients_are_computed_together():
    queue = TextQueue()
    for client in "abc":
        queue.add(client, client, [12, 11])
    assert [text.job for text in queue.next_batch(64)] == ["a", "a", "b", "b"]
    assert [text.job for text in queue.next_batch(64)] == ["c", "c"]


def test_what_is_given_up_is_not_computed():
    queue = TextQueue()
    queue.add("a", 1, [5, 5])
    queue.add("a", 2, [5])
    queue.discard("a", 1)
    queue.discard("a", 1)
    assert [text.job for text in queue.next_batch(100)] == [2]
    assert queue.num_texts == 0


def test_each_text_comes_once():
    rng = random.Random(1)
    queue = TextQueue()
    expected = set()
    for job in range(20):
        sizes = [rng.randint(1, 300) for _ in range(rng.randint(1, 30))]
        queue.add(str(job % 4), job, sizes)
        expected |= {(job, position, size) for position, size in enumerate(sizes)}
    found = []
    while batch := queue.next_batch(512):
        assert len(batch) == 1 or len(batch) * max(lengths(batch)) <= 512
        found += batch
        queue.check()
    assert len(found) == len(expected)
    assert {tuple(text) for text in found} == expected


def test_priorities_before_turns() -> None:
    queue: TextQueue[str] = TextQueue()
    queue.add("batch", "late", [10, 10], 9)
    queue.add("a", "first", [10])
    queue.add("b", "second", [10])
    assert [job for job, *_ in queue.next_batch(1000)] == ["first", "second"]
    assert [job for job, *_ in queue.next_batch(10)] == ["late"]
    queue.add("a", "third", [4])
    assert [job for job, *_ in queue.next_batch(10)] == ["third"]
    queue.check()
    queue.discard("batch", "late", 9)
    queue.check()
    assert not queue.num_texts
