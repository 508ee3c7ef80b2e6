"""Tests of `fastovms/service/watch.py`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fastovms.backend_stats import BackendStats, EngineCounters
from fastovms.service import watch as memory_trimmer
from fastovms.service.watch import (
    EngineWatch,
    LoopWatch,
    MemoryTrimmer,
    ProgressWatch,
    ThroughputLog,
)
from fastovms.system.processor_time import ProcessorTime

# Hanging engines, over a clock of the test's.


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Engine:
    """The part of a backend that is watched."""

    model = SimpleNamespace(name="m")

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
        (stats(num_waiting=2, num_held=2), 1, 0),  # requests that wait for the disk
        (stats(num_waiting=3, num_held=2), 1, 1),
    ):
        watch.observe(now, seconds)
        assert watch.stalled_for == stalled_for


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


def work(seconds, clock, engine, watch, **rates):
    """Advances the clock by a second at a time, and the engine's counters by their rates."""
    for _ in range(seconds):
        clock.now += 1
        for name, rate in rates.items():
            counters = engine.progress.counters
            setattr(counters, name, getattr(counters, name) + rate)
        watch.look()


def test_throughput_is_logged_every_ten_seconds_of_work_only(clock, caplog):
    engine = Engine()
    watch = EngineWatch(
        lambda: [engine],
        timeout=0,
        on_progress=lambda: None,
        interval=None,
        time=Process(clock),
        on_stats=ThroughputLog(clock).observe,
    )
    caplog.set_level("INFO")
    work(35, clock, engine, watch)
    assert caplog.messages == []
    engine.progress = stats(num_running=3, num_waiting=1, num_blocks=10, num_free_blocks=6)
    rates = {
        "num_prompt_tokens": 40,
        "num_generated_tokens": 7,
        "num_prefix_cache_queries": 40,
        "num_prefix_cache_hits": 10,
    }
    work(20, clock, engine, watch, **rates)
    line = (
        "m: prompt throughput: 40.0 tokens/s, generation throughput: 7.0 tokens/s, running: 3, "
        "waiting: 1, KV cache usage: 40.0%, prefix cache hit rate: 25.0%"
    )
    assert caplog.messages == [line, line]
    work(5, clock, engine, watch, num_generated_tokens=4)
    engine.progress = BackendStats(counters=engine.progress.counters)  # all requests have ended
    work(100, clock, engine, watch)
    end = "m: prompt throughput: 0.0 tokens/s, generation throughput: 2.0 tokens/s, running: 0, "
    assert caplog.messages[2:] == [f"{end}waiting: 0"]


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


def test_watch_without_a_timeout_reports_only_progress(engines, clock):
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
    assert await asyncio.wait_for(running, 60) == "out of order"


class FakeLoop:
    """Has the time, and the one call that it is asked for."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ran = 7.0
        self.due = 0.0
        self.call: Callable[[], None] | None = None

    def call_later(self, delay: float, call: Callable[[], None]) -> Any:
        self.due, self.call = self.now + delay, call
        return SimpleNamespace(cancel=self.cancel)

    def cancel(self) -> None:
        self.call = None

    def run(self, *, late: float, ran: float = 0.0) -> float:
        """Makes the call, `late` seconds after its time, while the thread ran for `ran` of them.
        Returns the seconds that it waited."""
        self.ran += ran
        waited = self.due - self.now
        self.now = self.due + late
        call, self.call = self.call, None
        assert call is not None
        call()
        return waited


@pytest.fixture
def watched() -> SimpleNamespace:
    loop, somebody = FakeLoop(), SimpleNamespace(is_there=True)
    watch = LoopWatch(lambda: somebody.is_there, lambda: loop.now, lambda: loop.ran)
    registry = CollectorRegistry()
    registry.register(watch)
    watch.start(loop)  # type: ignore[arg-type]
    return SimpleNamespace(loop=loop, watch=watch, somebody=somebody, get=registry.get_sample_value)


def test_loop_stalls_are_counted(watched: SimpleNamespace) -> None:
    for late in (0.0, 0.003, 0.3, 0.04, -0.001):
        watched.loop.run(late=late)
    get, name = watched.get, "fastovms_loop_stall_seconds"
    assert get(f"{name}_count") == 5
    assert get(f"{name}_sum") == pytest.approx(0.343)
    assert get(f"{name}_bucket", {"le": "0.05"}) == 4
    assert get(f"{name}_bucket", {"le": "0.5"}) == 5
    assert get("fastovms_loop_longest_stall_seconds") == pytest.approx(0.3)


def test_busy_time_of_the_loop_is_measured_apart_from_waits(
    watched: SimpleNamespace,
) -> None:
    busy = "fastovms_loop_longest_busy_seconds"
    watched.loop.run(late=0.3, ran=0.02)
    assert watched.get(busy) == pytest.approx(0.02)
    watched.loop.run(late=0.1, ran=0.12)  # of which some was before the call was due
    assert watched.get(busy) == pytest.approx(0.1)
    watched.loop.run(late=0.0, ran=0.05)
    assert watched.get(busy) == pytest.approx(0.1)


def test_loop_without_connections_is_watched_less_often(watched: SimpleNamespace) -> None:
    assert watched.loop.run(late=0) == pytest.approx(0.05)
    watched.somebody.is_there = False
    watched.loop.run(late=0)
    assert watched.loop.run(late=0) == pytest.approx(1.0)
    watched.somebody.is_there = True
    watched.loop.run(late=0)
    assert watched.loop.run(late=0) == pytest.approx(0.05)


def test_stopped_loop_watch_schedules_no_call(watched: SimpleNamespace) -> None:
    watched.watch.stop()
    assert watched.loop.call is None


async def test_failed_statistic_does_not_end_the_watch(engines, clock, caplog):
    looks: list[float] = []

    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files")

    watch = EngineWatch(
        lambda: engines,
        timeout=3.0,
        on_progress=lambda: looks.append(clock.now),
        interval=0.004,
        time=Process(clock),
        on_stats=fail,
    )
    running = asyncio.ensure_future(watch.run())
    while len(looks) < 3:  # noqa: ASYNC110 (nothing tells of it)
        await asyncio.sleep(0.001)
    engines[0].failure = "out of order"
    assert await asyncio.wait_for(running, 60) == "out of order"
    assert [record.message for record in caplog.records] == [
        "engine watch: a check failed; checks continue"
    ]


@pytest.fixture
def trims(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], object], int], Awaitable]:
    """Returns what trims memory a number of times in short intervals, and then once no more."""
    monkeypatch.setattr(memory_trimmer, "FIRST", 0.001)
    monkeypatch.setattr(memory_trimmer, "INTERVAL", 0.001)

    async def run(trim: Callable[[int], object], times: int) -> None:
        loop, numbers, enough = asyncio.get_running_loop(), count(1), asyncio.Event()

        def numbered() -> None:
            number = next(numbers)
            if number == times:
                loop.call_soon_threadsafe(enough.set)
            trim(number)

        trimmer = MemoryTrimmer(numbered)
        trimmer.start(loop)
        await asyncio.wait_for(enough.wait(), 60)
        trimmer.stop()

    return run


async def test_memory_is_trimmed_repeatedly_in_another_thread(trims) -> None:
    threads: list[threading.Thread] = []
    await trims(lambda _: threads.append(threading.current_thread()), 3)
    assert threading.current_thread() not in threads


async def test_trims_do_not_overlap_and_a_failure_is_logged(trims, caplog) -> None:
    alone = threading.Lock()

    def trim(number: int) -> None:
        if number == 1:
            raise ValueError("no")
        assert alone.acquire(blocking=False)
        time.sleep(0.02)
        alone.release()

    await trims(trim, 3)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ValueError]


async def test_trim_without_a_thread_is_repeated(trims, monkeypatch) -> None:
    failures, start = [], threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if not failures:
            failures.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    await trims(lambda _: None, 1)
    assert failures


async def test_stopped_trimmer_makes_no_calls() -> None:
    loop = FakeLoop()
    trimmer = MemoryTrimmer(lambda: None)
    trimmer.start(loop)  # type: ignore[arg-type]
    assert loop.call is not None
    trimmer.stop()
    assert loop.call is None
