"""Bounds how long a process waits for disks and threads while it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

logger = logging.getLogger(__name__)

_LEAST: Final = 1.0
"""Seconds that all waits together have at least, so that a disk in order is written to."""


class LastWaits:
    """Waits for what must end before the process does, for a limited time altogether.

    Args:
        seconds: the limit, from the first wait on.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = max(_LEAST, seconds)
        self._end: float | None = None

    async def wait(self, name: str, work: Awaitable[object], most: float | None = None) -> bool:
        """Waits for some work, and logs its failure. Work that takes longer than there is time
        left is cancelled and left behind.

        Args:
            name: what is waited for, for the log.
            most: seconds that this work may take; None = as long as there is time left.

        Returns:
            Whether the work has ended.
        """
        loop = asyncio.get_running_loop()
        if self._end is None:
            self._end = loop.time() + self._seconds
        left = max(0.0, self._end - loop.time())
        task = asyncio.ensure_future(work)
        await asyncio.wait((task,), timeout=left if most is None else min(left, most))
        if not task.done():
            logger.error("shutdown: %s takes too long and is left behind", name)
            task.cancel()
            await asyncio.sleep(0)
            return False
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("shutdown: %s has failed", name, exc_info=error)
        return True


class LeavableExecutor(ThreadPoolExecutor):
    """Threads that `shutdown` does not wait for: one may wait for a disk for ever."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)
