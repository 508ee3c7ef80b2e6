"""Runs what waits for a disk in threads of its own, so that a slow disk holds back nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

_NUM_THREADS: Final = 8
"""More than disks do at a time: they mostly wait."""


class DiskThreads:
    """A few threads that one kind of work shares. In those of the event loop, which are few on a
    small machine, writes to a slow disk would keep prompts from being tokenized.

    Args:
        name: of the threads, for whoever lists them.
    """

    def __init__(self, name: str, num_threads: int = _NUM_THREADS) -> None:
        self._executor = ThreadPoolExecutor(num_threads, name)
        self._running: set[asyncio.Future[Any]] = set()

    def begin(
        self, work: Callable[Given, Result], *args: Given.args, **options: Given.kwargs
    ) -> asyncio.Future[Result]:
        """Has a thread do some work, which comes to its end also where nobody waits for it. Where
        the future is cancelled before a thread has begun, none begins."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, partial(work, *args, **options))
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    async def run(
        self, work: Callable[Given, Result], *args: Given.args, **options: Given.kwargs
    ) -> Result:
        """Returns what the work returns, and raises what it raises. Who is cancelled here leaves
        the thread to its work."""
        return await self.begin(work, *args, **options)

    async def close(self) -> None:
        """Returns when all work is done, with what it has led to. There can be none afterwards."""
        while self._running:
            await asyncio.wait(self._running)
        await asyncio.to_thread(self._executor.shutdown)
