"""Bounds what is written, by the second and by the day: flash wears by what is written to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

_DAY = 24 * 3600.0


class WrittenToday(NamedTuple):
    """What has been written on a day.

    Attributes:
        day: days since 1970.
    """

    day: int
    num_bytes: int


NOTHING_WRITTEN = WrittenToday(0, 0)


class WriteBudget:
    """Says when the next bytes may be written. It may be asked by several threads.

    Args:
        bytes_per_second: the rate, over any time.
        bytes_per_day: the most of a day, which begins at midnight, UTC.
        written: what was written before, perhaps by another process.
        clock: seconds, of a clock that goes on steadily.
        unix_time: seconds since 1970.
    """

    def __init__(
        self,
        bytes_per_second: float,
        bytes_per_day: float,
        written: WrittenToday = NOTHING_WRITTEN,
        clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._bytes_per_day = bytes_per_day
        self._written = written
        self._clock = clock
        self._unix_time = unix_time
        self._free_at = clock()
        self._lock = threading.Lock()

    @property
    def written(self) -> WrittenToday:
        """What has been written today so far."""
        day = int(self._unix_time() / _DAY)
        return self._written if self._written.day == day else WrittenToday(day, 0)

    def has_room(self, num_bytes: int) -> bool:
        """Returns whether so many bytes may still be written today."""
        return self.written.num_bytes + num_bytes <= self._bytes_per_day

    def spend(self, num_bytes: int, share: float = 1.0) -> float:
        """Takes note of bytes that have been written, and returns for how many seconds nothing is
        to be written now.

        Args:
            share: the share of the rate that may be used.
        """
        with self._lock:
            day, before = self.written
            self._written = WrittenToday(day, before + num_bytes)
            now = self._clock()
            seconds = num_bytes / (self._bytes_per_second * share)
            self._free_at = max(now, self._free_at) + seconds
            return self._free_at - now
