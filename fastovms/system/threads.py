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
    """Runs `work` in a thread that, unlike an executor's, does not prevent the process from ending.
    Returns a future of the result."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(setter: Callable[[], None]) -> None:
        if not future.done():  # already done if the caller was cancelled
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
            logger.debug("thread %s finished after the shutdown; its result is discarded", name)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


Given = ParamSpec("Given")

_NUM_THREADS: Final = 8
"""The number of threads: more than the requests that a disk handles at once, since threads mostly
wait."""


class DiskThreads:
    """A small thread pool for one kind of disk work. The event loop's default threads are not used,
    so that a slow disk does not delay tokenization. `name` is the threads' name."""

    def __init__(self, name: str, num_threads: int = _NUM_THREADS) -> None:
        self._executor = ThreadPoolExecutor(num_threads, name)
        self._running: set[asyncio.Future[Any]] = set()

    def begin(
        self, work: Callable[Given, Result], *args: Given.args, **options: Given.kwargs
    ) -> asyncio.Future[Result]:
        """Starts work in a thread, and returns a future of the result. The thread completes the
        work even if no caller waits for it. Cancelling the future before the work begins prevents
        it."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, partial(work, *args, **options))
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    async def run(
        self, work: Callable[Given, Result], *args: Given.args, **options: Given.kwargs
    ) -> Result:
        """Returns the result of the work, and raises its errors. The thread completes the work even
        if the caller is cancelled."""
        return await self.begin(work, *args, **options)

    async def close(self) -> None:
        """Waits for all work and its callbacks. No work can be started afterwards."""
        while self._running:
            await asyncio.wait(self._running)
        await asyncio.to_thread(self._executor.shutdown)


_LEAST: Final = 1.0
"""The minimum total time for all waits in seconds, so that writes to a working disk are
completed."""


class ShutdownWaits:
    """Waits for tasks at the end of the process, within `seconds` in total, counted from the first
    wait."""

    def __init__(self, seconds: float) -> None:
        self._seconds = max(_LEAST, seconds)
        self._end: float | None = None

    async def wait(self, name: str, work: Awaitable[object], most: float | None = None) -> bool:
        """Waits for work to end, and logs its failure. Work that exceeds the remaining time is
        cancelled and abandoned.

        Args:
            name: the name of the work, for the log.
            most: the maximum seconds for this work; None = the remaining time.

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
            logger.error("shutdown: %s takes too long and is abandoned", name)
            task.cancel()
            await asyncio.sleep(0)
            return False
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("shutdown: %s failed", name, exc_info=error)
        return True


class DetachableExecutor(ThreadPoolExecutor):
    """A thread pool whose `shutdown` never waits: a disk may block a thread forever."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)


async def run_to_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Awaits `work` to its end and returns its result. If the caller is cancelled, CancelledError
    is raised after the work has ended."""
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
        task.exception()  # prevents a log line about an unread exception
    raise cancelled
