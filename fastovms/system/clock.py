"""A clock for the expiry of stored data, and a limit on how much expires at once."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

_TOLERANCE: Final = 60.0
"""A change of the system's clock by more than this many seconds is a jump."""

_PATIENCE: Final = 600.0
"""Seconds for which a jump must last until the clock follows it."""


def boot_time() -> float:
    """Returns the seconds since boot, including time in which the machine was suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class SteadyClock:
    """Returns the Unix time for the expiry of stored data.

    A system clock that is wrong for some minutes must not make data expire. If the system clock
    jumps, this clock therefore continues monotonically; it follows the jump only if it lasts ten
    minutes. Thread-safe.

    Args:
        unix_time: returns the system clock's Unix time.
        elapsed: returns the seconds of a monotonic clock.
    """

    def __init__(self, unix_time: Callable[[], float], elapsed: Callable[[], float]) -> None:
        self._unix_time = unix_time
        self._elapsed = elapsed
        self._offset = unix_time() - elapsed()
        self._jump: tuple[float, float] | None = None  # (new offset, time when it was first seen)

    def __call__(self) -> float:
        elapsed = self._elapsed()
        offset = self._unix_time() - elapsed
        jump = self._jump
        if _is_near(offset, self._offset):
            self._offset, self._jump = offset, None
        elif jump is None or not _is_near(offset, jump[0]):
            self._jump = offset, elapsed
            logger.warning(
                "clock: the system's clock was set by %+.0f seconds; stored data expire by it in "
                "%.0f minutes if it stays so",
                offset - self._offset,
                _PATIENCE / 60,
            )
        elif elapsed - jump[1] >= _PATIENCE:
            self._offset, self._jump = offset, None
        return elapsed + self._offset


def _is_near(first: float, second: float) -> bool:
    return abs(first - second) <= _TOLERANCE


# A clock that is wrong when a server starts, or that stays wrong, makes all data too old at once.
_SHARE: Final = 16
_LONGEST_ROUND: Final = 60.0


class ExpiryRounds:
    """Limits how many expired objects are deleted: a sixteenth of all per minute, or faster if
    their maximum age is below half an hour. `what` is the objects' plural noun, for the log."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._ends_at = 0.0
        self._num_left = 0
        self._is_logged = False

    def allowed(self, num_objects: int, now: float, max_age: float = math.inf) -> int:
        """Returns how many objects may be deleted now.

        Args:
            num_objects: the number of all objects.
            max_age: the maximum age of an object in seconds.
        """
        seconds = min(_LONGEST_ROUND, max_age / (2 * _SHARE))
        if not 0.0 < self._ends_at - now <= seconds:
            self._is_logged = self._is_logged and not self._num_left
            self._ends_at = now + seconds
            self._num_left = max(1, num_objects // _SHARE)
        return self._num_left

    def spend(self, num_deleted: int, *, is_behind: Callable[[], bool]) -> None:
        """Counts deletions, and logs a warning if the limit is reached and `is_behind` returns
        True: more objects have expired."""
        self._num_left -= num_deleted
        if not self._num_left and not self._is_logged and is_behind():
            self._is_logged = True
            logger.warning(
                "many %s have expired at once; a sixteenth is deleted a minute: check the clock if "
                "that is unexpected",
                self._what,
            )

    def seconds_left(self, now: float) -> float:
        """Returns the seconds until more objects may be deleted."""
        left = self._ends_at - now
        return left if not self._num_left and 0.0 < left <= _LONGEST_ROUND else 0.0
