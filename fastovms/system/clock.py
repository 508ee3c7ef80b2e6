"""Times by which stored data expire, and a bound on what expires at once."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

_TOLERANCE: Final = 60.0
"""Seconds by which the system's clock may be set without counting as a jump."""

_PATIENCE: Final = 600.0
"""Seconds for which a jump must last until the clock follows it."""


def boot_time() -> float:
    """Returns seconds that pass also while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class SteadyClock:
    """Returns the Unix time, by which stored data expire.

    A system's clock that is wrong for some minutes must not let them expire. The time therefore
    continues by a monotonic clock where the system's clock jumps, for ten minutes. It then follows,
    if the system's clock has not returned. May be called on any thread.

    Args:
        unix_time: the system's clock.
        elapsed: returns seconds of a monotonic clock.
    """

    def __init__(self, unix_time: Callable[[], float], elapsed: Callable[[], float]) -> None:
        self._unix_time = unix_time
        self._elapsed = elapsed
        self._offset = unix_time() - elapsed()
        self._jump: tuple[float, float] | None = None  # the new offset, and when it was first seen

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
    """Bounds how many objects are deleted because of their age: a sixteenth a minute, or in less
    time if they live for less than half an hour. `what` is the plural noun for the objects, for
    the log."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._ends_at = 0.0
        self._num_left = 0
        self._is_logged = False

    def allowed(self, num_objects: int, now: float, max_age: float = math.inf) -> int:
        """Returns how many objects may be deleted now.

        Args:
            num_objects: the number of all objects.
            max_age: seconds that an object lives.
        """
        seconds = min(_LONGEST_ROUND, max_age / (2 * _SHARE))
        if not 0.0 < self._ends_at - now <= seconds:
            self._is_logged = self._is_logged and not self._num_left
            self._ends_at = now + seconds
            self._num_left = max(1, num_objects // _SHARE)
        return self._num_left

    def spend(self, num_deleted: int, *, is_behind: Callable[[], bool]) -> None:
        """Records deletions, and logs it if no more are allowed and `is_behind` returns that more
        objects are too old."""
        self._num_left -= num_deleted
        if not self._num_left and not self._is_logged and is_behind():
            self._is_logged = True
            logger.warning(
                "many %s have expired at once; a sixteenth is deleted a minute: check the clock if "
                "that is unexpected",
                self._what,
            )

    def seconds_left(self, now: float) -> float:
        """Returns the seconds until objects may be deleted again."""
        left = self._ends_at - now
        return left if not self._num_left and 0.0 < left <= _LONGEST_ROUND else 0.0
