"""Hanging engines, over a clock of the test's."""

from __future__ import annotations

import asyncio

import pytest

from fastovms.backend_stats import BackendStats, EngineCounters
from fastovms.service.engine_watch import EngineWatch, ProgressWatch
from fastovms.system.processor_time import ProcessorTime


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


def stats(num_steps=5, **members):
    return BackendStats(counters=EngineCounters(num_steps=num_steps), **members)


@pytest.mark.parametrize("busy", [RUNNING, WAITING])
def test_progress_watch_counts_time_in_one_step(busy):
    watch = ProgressWatch()
    for now, seconds, stalled_for in (
        (IDLE, 1, 0),
        (IDLE, 50, 0),
        (busy, 1, 1),
        (busy, 0, 1),
        (busy, 1, 2),
        (stats(6, num_running=1), 1, 0),
        (stats(6, num_running=1), 1, 1),
        (IDLE, 1, 0),
    ):
        watch.observe(now, seconds)
        assert watch.stalled_for == stalled_for


def test_progress_watch_ignores_requests_that_wait_for_the_disk():
    watch = ProgressWatch()
    watch.observe(IDLE, 1)
    watch.observe(stats(num_waiting=2, num_held=2), 1)
    assert not watch.stalled_for
    watch.observe(stats(num_waiting=3, num_held=2), 1)
    assert watch.stalled_for == 1


def test_progress_watch_allows_a_step_its_time():
    watch = ProgressWatch()
    watch.observe(RUNNING, 1)
    for stalled_for in (0, 0, 1):
        watch.observe(stats(num_running=1, step_allowance=10), 5 if not stalled_for else 1)
        assert watch.stalled_for == stalled_for


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def engines():
    return [Engine(), Engine()]


class Process(ProcessorTime):
    """Time of a process that gets a share of a processor."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.share = 1.0

    def take(self, interval: float) -> float:
        return interval * self.share


def make_watch(engines, clock, *, timeout=3.0, interval=None, process=None):
    looks: list[float] = []
    watch = EngineWatch(
        lambda: engines,
        timeout=timeout,
        on_progress=lambda: looks.append(clock.now),
        interval=interval,
        time=process or Process(clock),
    )
    return watch, looks


def test_look_declares_a_hanging_engine_dead(engines, clock):
    watch, _ = make_watch(engines, clock, timeout=4.0)
    engines[1].progress = RUNNING
    for _ in range(4):
        assert watch.look() is None, "the first look sees the step before"
    assert watch.look() == "no step has ended for 4 s"
    assert engines[1].failure == "no step has ended for 4 s"
    assert engines[0].failure is None


def test_look_spares_a_starved_engine(engines, clock):
    process = Process(clock)
    process.share = 0.01
    watch, looks = make_watch(engines, clock, timeout=4.0, interval=2.0, process=process)
    engines[1].progress = RUNNING
    for _ in range(300):
        assert watch.look() is None
    assert len(looks) == 300, "systemd is told of progress meanwhile"
    process.share = 1.0
    assert watch.look() is None
    assert watch.look() == "no step has ended for 5 s"


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
