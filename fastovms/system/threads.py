"""Threads for blocking work."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def in_daemon_thread(name: str, work: Callable[[], Result]) -> asyncio.Future[Result]:
    """Runs `work` in a thread that, unlike those of an executor, does not keep the process from
    ending. What it raises is the future's."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(setter: Callable[[], None]) -> None:
        if not future.done():  # else nobody waits any more
            setter()

    def run() -> None:
        setter: Callable[[], None]
        try:
            setter = partial(future.set_result, work())
        except Exception as error:
            setter = partial(future.set_exception, error)
        try:
            loop.call_soon_threadsafe(settle, setter)
        except RuntimeError:
            logger.debug("the thread %s has worked for nothing: the server has ended", name)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


Given = ParamSpec("Given")

_NUM_THREADS: Final = 8
"""More than disks do at a time: they mostly wait."""


class DiskThreads:
    """A few threads that one kind of work shares. On the threads of the event loop, which are few
    on a small machine, writes to a slow disk would keep prompts from being tokenized.

    Args:
        name: of the threads, for tools that list them.
    """

    def __init__(self, name: str, num_threads: int = _NUM_THREADS) -> None:
        self._executor = ThreadPoolExecutor(num_threads, name)
        self._running: set[asyncio.Future[Any]] = set()

    def begin(
        self, work: Callable[Given, Result], *args: Given.args, **options: Given.kwargs
    ) -> asyncio.Future[Result]:
        """Runs some work in a thread, which completes it even if no caller waits for it. Where the
        future is cancelled before a thread has begun, none begins."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, partial(work, *args, **options))
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    async def run(
        self, work: Callable[Given, Result], *args: Given.args, **options: Given.kwargs
    ) -> Result:
        """Returns the result of the work, and raises its errors. The thread completes its work even
        the thread to its work."""
        return await self.begin(work, *args, **options)

    async def close(self) -> None:
        """Returns when all work is done, with what it has led to. There can be none afterwards."""
        while self._running:
            await asyncio.wait(self._running)
        await asyncio.to_thread(self._executor.shutdown)


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


async def run_to_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Returns the result of the work, and raises its errors. A cancelled caller gets the
    cancellation once the work has ended: a caller that catches it finds all of it done."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # else the loop would tell that nobody has asked for it
    raise cancelled
