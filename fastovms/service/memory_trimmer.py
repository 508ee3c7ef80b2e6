"""Gives free memory back to the system."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

INTERVAL: Final = 30.0
"""Seconds between two trims, which take some milliseconds each."""


class MemoryTrimmer:
    """Trims the heap in a thread, at intervals.

    Large bodies and long answers come and go in many threads, and glibc gives every thread a heap
    of its own, of which it returns only the end. What lies free in between would add up over days.

    Args:
        trim: gives free memory back.
    """

    def __init__(self, trim: Callable[[], None]) -> None:
        self._trim = trim
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer = loop.call_later(INTERVAL, self._begin)

    def stop(self) -> None:
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        if self._loop is not None:
            self._loop.run_in_executor(None, self._trim)
            self._timer = self._loop.call_later(INTERVAL, self._begin)
