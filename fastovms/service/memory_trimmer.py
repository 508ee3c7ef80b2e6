"""Gives the heap's free memory back to the system, at intervals, in a thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

logger = logging.getLogger(__name__)

FIRST: Final = 1.0
"""Seconds until the first trim: loading a model leaves much behind."""

INTERVAL: Final = 30.0
"""Seconds from the end of a trim, which takes some milliseconds, to the next."""


class MemoryTrimmer:
    """Trims the heap in a thread of its own, one trim at a time, at intervals.

    Large bodies and long answers come and go in many threads, and glibc gives every thread a heap
    of its own, of which it returns only the end. What lies free in between would add up over days.

    Args:
        trim: gives free memory back.
    """

    def __init__(self, trim: Callable[[], None]) -> None:
        self._trim = trim
        self._thread = ThreadPoolExecutor(1, "memory-trimmer")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wait(loop, FIRST)

    def stop(self) -> None:
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        self._thread.shutdown(wait=False)

    def _wait(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._timer = loop.call_later(seconds, self._begin)

    def _begin(self) -> None:
        if self._loop is not None:
            trim = self._loop.run_in_executor(self._thread, self._trim)
            trim.add_done_callback(self._end)

    def _end(self, trim: asyncio.Future[None]) -> None:
        error = trim.exception()
        if error is not None:
            logger.error("the heap could not be trimmed", exc_info=error)
        if self._loop is not None:
            self._wait(self._loop, INTERVAL)
