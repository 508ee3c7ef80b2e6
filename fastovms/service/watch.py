"""Watches the engines and the event loop, logs the throughput, and trims the heap."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fastovms.backend import Backend
from fastovms.backend_stats import BackendStats, EngineCounters, Histogram
from fastovms.system.processor_time import ProcessorTime

logger = logging.getLogger(__name__)


_INTERVAL: Final = 1.0


class ProgressWatch:
    """Watches whether one engine finishes steps.

    Attributes:
        stalled_for: seconds for which the engine has had work without finishing a step, beyond the
            step's allowance. Only time in which the process could run counts.
    """

    def __init__(self) -> None:
        self.stalled_for = 0.0
        self._num_steps = 0
        self._in_step_for = 0.0

    def observe(self, stats: BackendStats, seconds: float) -> None:
        """Records the engine's progress since the last check.

        Args:
            seconds: the seconds since the last check in which the process could run.
        """
        has_work = stats.num_running or stats.num_waiting > stats.num_held
        if has_work and stats.counters.num_steps == self._num_steps:
            self._in_step_for += seconds
        else:
            self._num_steps = stats.counters.num_steps
            self._in_step_for = 0.0
        self.stalled_for = max(0.0, self._in_step_for - stats.step_allowance)


class EngineWatch:
    """Checks all engines periodically for hangs.

    Args:
        backends: returns the current backends.
        timeout: seconds without a step after which an engine counts as failed; 0 = never. Time in
            which the process could not run because of other processes or a quota does not count.
        on_progress: called after each check, at least once in `interval` seconds, while no engine
            has stalled for `timeout` seconds or for twice the interval.
        interval: seconds between two checks; None = chosen by this class.
        time: counts the seconds in which the process could run.
        on_stats: called at each check with each backend and its statistics.
    """

    def __init__(
        self,
        backends: Callable[[], Iterable[Backend]],
        *,
        timeout: float,
        on_progress: Callable[[], None],
        interval: float | None,
        time: ProcessorTime,
        on_stats: Callable[[Backend, BackendStats], object] = lambda backend, stats: None,
    ) -> None:
        self._timeout = timeout
        self._on_progress = on_progress
        self._backends = backends
        self._watches: WeakKeyDictionary[Backend, ProgressWatch] = WeakKeyDictionary()
        # systemd's timeout is twice this interval.
        self._patience = min(filter(None, (timeout, 2 * (interval or 0.0))), default=_INTERVAL)
        self._interval = min(_INTERVAL, interval or _INTERVAL, timeout / 4 or _INTERVAL)
        self._time = time
        self._on_stats = on_stats

    async def run(self) -> str:
        """Waits until an engine fails, and returns the reason."""
        # Polls, because a hang causes no event to wait for.
        has_failed = False
        while True:
            try:
                if (failure := self.look()) is not None:
                    return failure
            except Exception:  # statistics or the service manager failed, not an engine
                if not has_failed:
                    logger.exception("engine watch: a check failed; checks continue")
                has_failed = True
            await asyncio.sleep(self._interval)

    def look(self) -> str | None:
        """Checks each engine once. Returns the reason if one has failed, or None. An engine that
        hangs is marked as failed."""
        seconds = self._time.take(self._interval)
        in_order = True
        observed = []
        for backend in self._backends():
            watch = self._watches.get(backend)
            if watch is None:
                watch = self._watches[backend] = ProgressWatch()
            stats = backend.stats()
            watch.observe(stats, seconds)
            observed.append((backend, stats))
            in_order &= watch.stalled_for < self._patience
            if self._timeout and watch.stalled_for >= self._timeout:
                backend.fail(f"no step has ended for {watch.stalled_for:.0f} s")
            if backend.failure is not None:
                return backend.failure
        if in_order:
            self._on_progress()
        for backend, stats in observed:
            self._on_stats(backend, stats)
        return None


_THROUGHPUT_INTERVAL: Final = 10.0
"""Seconds between two log lines about one model."""


class ThroughputLog:
    """Logs the throughput of each busy model every ten seconds, as vLLM does. `clock` returns
    seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begins: WeakKeyDictionary[Backend, tuple[float, EngineCounters]] = WeakKeyDictionary()

    def observe(self, backend: Backend, stats: BackendStats) -> None:
        """Logs a line if ten seconds have passed. Call it every second."""
        now, counters = self._clock(), replace(stats.counters)
        begin, before = self._begins.get(backend, (now, counters))
        num_in = counters.num_prompt_tokens - before.num_prompt_tokens
        num_out = counters.num_generated_tokens - before.num_generated_tokens
        works = num_in or num_out or stats.num_running or stats.num_waiting
        seconds = now - begin
        if works and seconds < _THROUGHPUT_INTERVAL:
            self._begins[backend] = begin, before
            return
        self._begins[backend] = now, counters
        if not works:
            return
        num_queries = counters.num_prefix_cache_queries - before.num_prefix_cache_queries
        num_hits = counters.num_prefix_cache_hits - before.num_prefix_cache_hits
        cache = f", KV cache usage: {stats.kv_cache_usage:.1%}" if stats.num_blocks else ""
        if num_queries:
            cache += f", prefix cache hit rate: {num_hits / num_queries:.1%}"
        logger.info(
            "%s: prompt throughput: %.1f tokens/s, generation throughput: %.1f tokens/s, running: "
            "%d, waiting: %d%s",
            backend.model.name,
            num_in / seconds,
            num_out / seconds,
            stats.num_running,
            stats.num_waiting,
            cache,
        )


class ChildCollector(Collector):
    """Exports the number and the memory of child processes, such as those for media, grammars or
    models. `memory` returns the resident bytes of each child process."""

    def __init__(self, memory: Callable[[], Sequence[int]]) -> None:
        self._memory = memory

    def collect(self) -> Iterable[Metric]:
        sizes = self._memory()
        name = "fastovms_child_process"
        yield GaugeMetricFamily(f"{name}es", "Child processes", value=len(sizes))
        yield GaugeMetricFamily(
            f"{name}_resident_memory_bytes",
            "Resident bytes of all child processes",
            value=sum(sizes),
        )


_LOOP_INTERVAL: Final = 0.05
"""Seconds between two checks while a client is connected; a longer pass of the loop counts as
late."""

_IDLE_INTERVAL: Final = 1.0
"""Seconds between two checks while no client is connected, so that an idle machine may sleep. A
delay in the first second of the first connection may therefore be missed."""

_BOUNDS: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class LoopWatch(Collector):
    """Measures the event loop's delay: schedules calls, and exports how late each one runs.

    A call is late if a callback blocks the loop, a thread holds the GIL, or the process gets no
    CPU. Network input is then equally delayed. A delay is measured with an error of at most the
    interval between calls: 50 ms while a client is connected, otherwise up to a second.

    Args:
        is_watched: returns whether a client is connected; otherwise calls are less frequent.
        clock: returns seconds.
        thread_clock: returns the CPU seconds of the calling thread.
    """

    def __init__(
        self,
        is_watched: Callable[[], bool],
        clock: Callable[[], float],
        thread_clock: Callable[[], float],
    ) -> None:
        self._is_watched = is_watched
        self._clock = clock
        self._thread_clock = thread_clock
        self._stalls = Histogram(_BOUNDS)
        self._longest = 0.0
        self._longest_busy = 0.0
        self._ran_before = 0.0
        self._due = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to measure an event loop."""
        self._loop = loop
        self._wait(loop)

    def stop(self) -> None:
        """Ends the measurement."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()

    def collect(self) -> Iterable[Metric]:
        name, text = "fastovms_loop_stall_seconds", "Delay of a timer of the event loop"
        stalls = HistogramMetricFamily(name, text)
        stalls.add_metric([], *self._stalls.buckets())
        yield stalls
        yield GaugeMetricFamily(
            "fastovms_loop_longest_stall_seconds",
            "Largest delay of a timer of the event loop since models are served",
            value=self._longest,
        )
        yield GaugeMetricFamily(
            "fastovms_loop_longest_busy_seconds",
            "Largest processor time of the event loop within a delay of a timer",
            value=self._longest_busy,
        )

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        interval = _LOOP_INTERVAL if self._is_watched() else _IDLE_INTERVAL
        self._due = self._clock() + interval
        self._ran_before = self._thread_clock()
        self._timer = loop.call_later(interval, self._look)

    def _look(self) -> None:
        stall = max(0.0, self._clock() - self._due)
        self._stalls.observe(stall)
        self._longest = max(self._longest, stall)
        # Includes the CPU time between setting the timer and its due time, hence `min` below.
        ran = self._thread_clock() - self._ran_before
        self._longest_busy = max(self._longest_busy, min(stall, ran))
        if self._loop is not None:
            self._wait(self._loop)


FIRST: Final = 1.0
"""Seconds until the first trim: loading a model leaves much free memory."""

INTERVAL: Final = 30.0
"""Seconds from the end of a trim, which takes some milliseconds, to the next."""


class MemoryTrimmer:
    """Calls `trim`, which returns free heap memory to the operating system, in a thread at
    intervals.

    glibc has a heap per thread, and by itself returns only free memory at the end of a heap. Other
    free memory would accumulate over days.
    """

    def __init__(self, trim: Callable[[], None]) -> None:
        self._trim = trim
        self._thread = ThreadPoolExecutor(1, "memory-trimmer")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts trimming periodically."""
        self._loop = loop
        self._wait(loop, FIRST)

    def stop(self) -> None:
        """Stops trimming."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        self._thread.shutdown(wait=False)

    def _wait(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._timer = loop.call_later(seconds, self._begin)

    def _begin(self) -> None:
        if self._loop is None:
            return
        try:
            trim = self._loop.run_in_executor(self._thread, self._trim)
        except Exception as error:  # the system refuses another thread: try again later
            self._schedule_next(error)
        else:
            trim.add_done_callback(lambda trim: self._schedule_next(trim.exception()))

    def _schedule_next(self, error: BaseException | None) -> None:
        if error is not None:
            logger.error(
                "memory: free heap memory cannot be returned to the system", exc_info=error
            )
        if self._loop is not None:
            self._wait(self._loop, INTERVAL)
