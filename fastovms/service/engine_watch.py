"""Finds engines that hang or have failed, by the progress of their steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakKeyDictionary

from fastovms.backend import Backend
from fastovms.backend_stats import BackendStats

_INTERVAL: Final = 1.0
_MAX_INTERVAL: Final = 5.0
"""The most seconds between two looks that count against an engine. A process that was stopped or
starved as a whole says nothing about its engine."""


class ProgressWatch:
    """Watches the steps of one engine.

    Attributes:
        stalled_for: seconds for which it has had work and has finished no step, beyond those that
            the step was allowed.
    """

    def __init__(self, now: float) -> None:
        self.stalled_for = 0.0
        self._observed_at = now
        self._num_steps = 0
        self._in_step_for = 0.0

    def observe(self, stats: BackendStats, now: float) -> bool:
        """Returns whether the engine has moved since the last look, has nothing to do, or may yet
        take its time."""
        elapsed = min(now - self._observed_at, _MAX_INTERVAL)
        self._observed_at = now
        has_work = stats.num_running or stats.num_waiting > stats.num_held
        if has_work and stats.counters.num_steps == self._num_steps:
            self._in_step_for += elapsed
        else:
            self._num_steps = stats.counters.num_steps
            self._in_step_for = 0.0
        self.stalled_for = max(0.0, self._in_step_for - stats.step_allowance)
        return not self.stalled_for


class EngineWatch:
    """Looks at all engines in turn.

    Args:
        backends: returns those there are at the moment.
        timeout: seconds without a step after which an engine is declared dead; 0 = never.
        on_progress: called after each look that found every engine in order, at least once in
            `interval` seconds then.
        interval: seconds between two looks; None = whenever this class likes.
    """

    def __init__(
        self,
        backends: Callable[[], Iterable[Backend]],
        *,
        timeout: float,
        on_progress: Callable[[], None],
        interval: float | None,
        clock: Callable[[], float],
    ) -> None:
        self._timeout = timeout
        self._on_progress = on_progress
        self._clock = clock
        self._backends = backends
        self._watches: WeakKeyDictionary[Backend, ProgressWatch] = WeakKeyDictionary()
        self._interval = min(_INTERVAL, interval or _INTERVAL, timeout / 4 or _INTERVAL)

    async def run(self) -> str:
        """Waits for a failure, and returns why an engine can generate no more."""
        # A hang is the absence of events, so there is none to wait for.
        while (failure := self.look()) is None:  # noqa: ASYNC110
            await asyncio.sleep(self._interval)
        return failure

    def look(self) -> str | None:
        """Looks at each engine once, and returns why one can generate no more, or None. An engine
        that hangs is told that it has failed."""
        now = self._clock()
        in_order = True
        for backend in self._backends():
            watch = self._watches.get(backend)
            if watch is None:
                watch = self._watches[backend] = ProgressWatch(self._clock())
            in_order &= watch.observe(backend.stats(), now)
            if self._timeout and watch.stalled_for >= self._timeout:
                backend.fail(f"no step has ended for {watch.stalled_for:.0f} s")
            if backend.failure is not None:
                return backend.failure
        if in_order:
            self._on_progress()
        return None
