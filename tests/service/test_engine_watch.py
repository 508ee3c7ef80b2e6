"""Hanging engines, over a clock of the test's."""

from __future__ import annotations

import asyncio

import pytest

from fastovms.backend_stats import BackendStats, EngineCounters
from fastovms.service.engine_watch import EngineWatch, ProgressWatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Engine:
    """The part of a backend that is watched."""

    def __init__(self) -> None:
        self.progress = BackendStats()
        self.failure: str | None = None

    def stats(self) -> BackendStats:
        return self.progress

    def fail(self, reason: str) -> None:
        self.failure = reason


IDLE = BackendStats(counters=EngineCounters(num_steps=5))
RUNNING = BackendStats(num_running=1, counters=EngineCounters(num_steps=5))
WAITING = BackendStats(num_waiting=1, counters=EngineCounters(num_steps=5))


@pytest.mark.parametrize("busy", [RUNNING, WAITING])
def test_stalls(busy):
    watch = ProgressWatch(0)
    assert watch.observe(IDLE, 1)
    assert watch.observe(IDLE, 50), "nothing to do is no stall"
    assert not watch.observe(busy, 51)
    assert not watch.observe(busy, 52)
    assert watch.stalled_for == 2
    assert watch.observe(BackendStats(num_running=1, counters=EngineCounters(num_steps=6)), 53)
    assert watch.stalled_for == 0
    assert not watch.observe(BackendStats(num_running=1, counters=EngineCounters(num_steps=6)), 54)
    assert watch.observe(IDLE, 55)
    assert watch.stalled_for == 0


def test_what_waits_for_the_disk_is_no_stall():
    held = BackendStats(num_waiting=2, num_held=2, counters=EngineCounters(num_steps=5))
    both = BackendStats(num_waiting=3, num_held=2, counters=EngineCounters(num_steps=5))
    watch = ProgressWatch(0)
    assert watch.observe(IDLE, 1)
    assert watch.observe(held, 2)
    assert watch.observe(held, 3)
    assert not watch.observe(both, 4)


def test_a_step_may_be_allowed_its_time():
    watch = ProgressWatch(0)
    long_step = BackendStats(num_running=1, counters=EngineCounters(num_steps=5), step_allowance=10)
    assert watch.observe(RUNNING, 1)
    for now in (5, 9, 11):
        assert watch.observe(long_step, now)
    assert not watch.observe(long_step, 12)
    assert watch.stalled_for == 1
    assert watch.observe(BackendStats(num_running=1, counters=EngineCounters(num_steps=6)), 13)
    assert not watch.observe(
        BackendStats(num_running=1, counters=EngineCounters(num_steps=6)), 14
    ), "each anew"


def test_time_in_which_nobody_looked_does_not_count():
    watch = ProgressWatch(0)
    watch.observe(RUNNING, 1)
    watch.observe(RUNNING, 1000)
    assert watch.stalled_for == 5


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def engines():
    return [Engine(), Engine()]


def make_watch(engines, clock, *, timeout=3.0, interval=None):
    looks: list[float] = []
    watch = EngineWatch(
        lambda: engines,
        timeout=timeout,
        on_progress=lambda: looks.append(clock.now),
        interval=interval,
        clock=clock,
    )
    return watch, looks


def test_a_hanging_engine_is_declared_dead(engines, clock):
    watch, looks = make_watch(engines, clock)
    assert watch.look() is None
    engines[1].progress = RUNNING
    assert watch.look() is None, "its first step since the last look"
    for _ in range(2):
        clock.now += 1
        assert watch.look() is None
    assert looks == [100, 100], "no progress was reported while one of them stood still"
    clock.now += 1
    assert watch.look() == "no step has ended for 3 s"
    assert engines[1].failure == "no step has ended for 3 s"
    assert engines[0].failure is None


def test_without_a_timeout_only_progress_is_told(engines, clock):
    watch, looks = make_watch(engines, clock, timeout=0)
    engines[0].progress = RUNNING
    watch.look()
    for _ in range(100):
        clock.now += 1
        assert watch.look() is None
    assert looks == [100]


async def test_run_ends_with_the_failure(engines, clock):
    watch, _ = make_watch(engines, clock, interval=0.01)
    running = asyncio.ensure_future(watch.run())
    await asyncio.sleep(0)
    engines[0].failure = "out of order"
    assert await asyncio.wait_for(running, 5) == "out of order"
