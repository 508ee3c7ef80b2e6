"""Measures how late the event loop calls back, and exports it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fastovms.telemetry.series import Histogram

_INTERVAL: Final = 0.05
"""Seconds between two looks while somebody is connected: the longest pass that the loop is meant to
make."""

_IDLE_INTERVAL: Final = 1.0
"""Seconds between two looks while nobody is connected: an idle machine may sleep. What happens in
the first second of the first connection may therefore go unnoticed."""

_BOUNDS: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class LoopWatch(Collector):
    """Asks the loop for a call at a time, and exports how late each call comes.

    A call is as late as whatever comes in at that moment: because of a callback that runs, of a
    thread that holds the GIL, or of a machine that has no core for this process. A pass of the loop
    that takes longer than the time between two looks is seen for its length, less at most that
    time: 50 ms while somebody is connected, and a second where the first connection has just come.

    Args:
        is_watched: returns whether anybody would wait. If not, there are fewer looks.
        clock: tells seconds.
        thread_clock: tells the seconds for which a processor has run the calling thread.
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
        self._loop = loop
        self._wait(loop)

    def stop(self) -> None:
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()

    def collect(self) -> Iterable[Metric]:
        name, text = "fastovms_loop_stall_seconds", "How late the event loop came to a timer"
        stalls = HistogramMetricFamily(name, text)
        stalls.add_metric([], *self._stalls.buckets())
        yield stalls
        yield GaugeMetricFamily(
            "fastovms_loop_longest_stall_seconds",
            "How late the event loop came to a timer at most, since models are served",
            value=self._longest,
        )
        yield GaugeMetricFamily(
            "fastovms_loop_longest_busy_seconds",
            "How much of such a delay was processor time of the event loop's own, at most",
            value=self._longest_busy,
        )

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        interval = _INTERVAL if self._is_watched() else _IDLE_INTERVAL
        self._due = self._clock() + interval
        self._ran_before = self._thread_clock()
        self._timer = loop.call_later(interval, self._look)

    def _look(self) -> None:
        stall = max(0.0, self._clock() - self._due)
        self._stalls.observe(stall)
        self._longest = max(self._longest, stall)
        ran = self._thread_clock() - self._ran_before  # before it was due, too
        self._longest_busy = max(self._longest_busy, min(stall, ran))
        if self._loop is not None:
            self._wait(self._loop)
