from __future__ import annotations

from fastovms.engine.stored_prefixes.reading_policy import ReadingPolicy


def test_what_is_not_known_is_tried() -> None:
    policy = ReadingPolicy()
    assert policy.pays(1, 10**9)
    policy.learn_computed(63, 1.0)  # too few to tell
    assert policy.computing_seconds(100) is None
    assert policy.patience(100) == 5


def test_the_faster_way_is_taken() -> None:
    policy = ReadingPolicy()
    policy.learn_computed(1000, 1.0)
    policy.learn_read(10**6, 1.0)
    assert policy.pays(1000, 900_000)
    assert not policy.pays(1000, 1_100_000)
    assert policy.patience(3000) == 3
    assert policy.patience(30) == 0.5


def test_a_disk_that_was_slow_once_is_tried_again() -> None:
    policy = ReadingPolicy()
    policy.learn_computed(1000, 1.0)
    policy.learn_read(10**6, 5.0)
    answers = [policy.pays(1000, 10**6) for _ in range(30)]
    assert not any(answers[:10])
    assert answers[-1]
