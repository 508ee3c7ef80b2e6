"""Finds engines that hang or have failed, by the progress of their steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakKeyDictionary

from fastovms.backend import Backend
from fastovms.backend_stats import BackendStats
from fastovms.system.processor_time import ProcessorTime

_INTERVAL: Final = 1.0


class ProgressWatch:
    """Watches the steps of one engine.

    Attributes:
        stalled_for: seconds for which the engine has had work and has finished no step, beyond
            those that the step was allowed. Only time in which the process could run counts.
    """

    def __init__(self) -> None:
        self.stalled_for = 0.0
        self._num_steps = 0
        self._in_step_for = 0.0

    def observe(self, stats: BackendStats, seconds: float) -> None:
        """Takes note of what an engine has done since the last look.

        Args:
            seconds: time since the last look in which the process could run.
        """
        has_work = stats.num_running or stats.num_waiting > stats.num_held
        if has_work and stats.counters.num_steps == self._num_steps:
            self._in_step_for += seconds
        else:
            self._num_steps = stats.counters.num_steps
            self._in_step_for = 0.0
        self.stalled_for = max(0.0, self._in_step_for - stats.step_allowance)


class EngineWatch:
    """Looks at all engines in turn.

    Args:
        backends: returns those there are at the moment.
        timeout: seconds without a step after which an engine is declared dead; 0 = never. Time in
            which other processes or a quota kept the process from running does not count.
        on_progress: called after each look, at least once in `interval` seconds, while no engine
            has stalled for `timeout` seconds or for twice the interval.
        interval: seconds between two looks; None = whenever this class likes.
        time: counts the seconds in which the process could run.
    """

    def __init__(
        self,
        backends: Callable[[], Iterable[Backend]],
        *,
        timeout: float,
        on_progress: Callable[[], None],
        interval: float | None,
        time: ProcessorTime,
    ) -> None:
        self._timeout = timeout
        self._on_progress = on_progress
        self._backends = backends
        self._watches: WeakKeyDictionary[Backend, ProgressWatch] = WeakKeyDictionary()
        # systemd waits twice as long for a sign of life as the interval is.
        self._patience = min(filter(None, (timeout, 2 * (interval or 0.0))), default=_INTERVAL)
        self._interval = min(_INTERVAL, interval or _INTERVAL, timeout / 4 or _INTERVAL)
        self._time = time

    async def run(self) -> str:
        """Waits for a failure, and returns why an engine can generate no more."""
        # A hang is the absence of events, so there is none to wait for.
        while (failure := self.look()) is None:  # noqa: ASYNC110
            await asyncio.sleep(self._interval)
        return failure

    def look(self) -> str | None:
        """Looks at each engine once, and returns why one can generate no more, or None. An engine
        that hangs is declared dead."""
        seconds = self._time.take(self._interval)
        in_order = True
        for backend in self._backends():
            watch = self._watches.get(backend)
            if watch is None:
                watch = self._watches[backend] = ProgressWatch()
            watch.observe(backend.stats(), seconds)
            in_order &= watch.stalled_for < self._patience
            if self._timeout and watch.stalled_for >= self._timeout:
                backend.fail(f"no step has ended for {watch.stalled_for:.0f} s")
            if backend.failure is not None:
                return backend.failure
        if in_order:
            self._on_progress()
        return None
