"""Has a long work give way to other threads, and end where nobody wants it any more."""

from __future__ import annotations

import time
from typing import Final

_STEPS_AT_ONCE: Final = 32
_BYTES_AT_ONCE: Final = 128 * 1024
"""After how many steps, or bytes of these, there is a rest: they take some tenths of a
millisecond, for which they hold the GIL."""


class Stopped(Exception):
    """Says that the work is not wanted any more."""


class Pace:
    """The pace of one work in a thread.

    Args:
        pause: seconds of each rest. Without it, the streams beside a million lines are several
            times as slow: a thread that only lets others have the GIL gets it back too soon.
    """

    def __init__(self, pause: float = 0.0) -> None:
        self._pause = pause
        self._num_steps = 0
        self._num_bytes = 0
        self._is_stopped = False

    def stop(self) -> None:
        """Has the work end at its next step. Any thread may call it."""
        self._is_stopped = True

    def spend(self, num_bytes: int) -> None:
        """Says that a step is ahead which looks at so many bytes. Raises Stopped."""
        if self._is_stopped:
            raise Stopped
        self._num_steps += 1
        self._num_bytes += num_bytes
        if self._num_steps >= _STEPS_AT_ONCE or self._num_bytes >= _BYTES_AT_ONCE:
            self._num_steps = self._num_bytes = 0
            if self._pause:
                time.sleep(self._pause)
