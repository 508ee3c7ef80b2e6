"""Measures how long the process could have run, to distinguish a starved process from a hanging
one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fastovms.system.memory import num_usable_cpus

_ROOT: Final = Path("/")
_NANOSECONDS: Final = 1e-9
_MICROSECONDS: Final = 1e-6

_LEAST_USE: Final = 0.01
"""The minimum fraction of a CPU that a computing process uses, even if it is starved. Deadlocked
threads use less."""


class ProcessorTime:
    """Counts the seconds in which the threads of the process had a CPU or did not need one.

    A thread that is ready but cannot run, because of other processes or the quota of a control
    group, waits in a run queue; Linux counts that time per thread. Deadlocked threads sleep
    instead, and do not wait for a CPU.

    Args:
        clock: returns seconds, and continues while the process is stopped.
        own_clock: returns the CPU seconds of the process.
        num_cpus: the number of CPUs that the process may use.
        root: where `proc` is mounted.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        own_clock: Callable[[], float] = time.process_time,
        num_cpus: Callable[[], int] = num_usable_cpus,
        root: Path = _ROOT,
    ) -> None:
        self._clock = clock
        self._own_clock = own_clock
        self._num_cpus = num_cpus()
        self._root = root
        self._taken_at = clock()
        self._used = own_clock()
        self._waits: dict[str, float] = {}
        self._pressure = 0.0

    def take(self, interval: float) -> float:
        """Returns the seconds since the last call in which the process could run.

        Args:
            interval: the expected seconds since the last call. If much more time has passed, as
                after SIGSTOP, only CPU time counts, at most the interval.
        """
        now, used = self._clock(), self._own_clock()
        elapsed, own = now - self._taken_at, used - self._used
        self._taken_at, self._used = now, used
        waited = self._waited(is_computing=own >= _LEAST_USE * elapsed)
        could_run = elapsed - waited if elapsed < 2 * interval else 0.0
        return min(interval, max(could_run, own / self._num_cpus))

    def _waited(self, *, is_computing: bool) -> float:
        """Returns the longest time that a thread of the process waited for a CPU. On kernels
        without that statistic, returns the time in which any thread of the machine waited."""
        before, self._waits = self._waits, self._run_delays()
        if self._waits:
            return max(wait - before.get(thread, 0.0) for thread, wait in self._waits.items())
        pressure, self._pressure = self._pressure, self._cpu_pressure()
        return self._pressure - pressure if is_computing else 0.0

    def _run_delays(self) -> dict[str, float]:
        delays = {}
        tasks = self._root / "proc/self/task"
        try:
            threads = os.listdir(tasks)
        except OSError:  # the file does not exist, or there are too many open files
            return {}
        for thread in threads:
            try:
                text = (tasks / thread / "schedstat").read_text()
                delays[thread] = int(text.split()[1]) * _NANOSECONDS
            except (
                OSError,
                IndexError,
                ValueError,
            ):  # the thread has ended, or this is not counted
                continue
        return delays

    def _cpu_pressure(self) -> float:
        try:
            some = (self._root / "proc/pressure/cpu").read_text().splitlines()[0]
            return int(some.rpartition("total=")[2]) * _MICROSECONDS
        except (OSError, IndexError, ValueError):
            return 0.0
