"""Runs calls of many clients in one thread, fairly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from fastovms.errors import BackendUnavailable, Overloaded
from fastovms.fair_queue import FairQueue

Result = TypeVar("Result")


class _QueuedWork(Generic[Result]):
    __slots__ = ("call", "done")

    def __init__(self, call: Callable[[], Result], done: asyncio.Future[Result]) -> None:
        self.call = call
        self.done = done


class FairThread(Generic[Result]):
    """Runs calls one after the other in a thread of its own, and takes the clients in turn. It
    belongs to an event loop.

    Args:
        items: what the calls are for, in the plural, for messages and the thread's name.
        per_client: how many calls of one client may wait.
        total: how many calls may wait in all.
    """

    def __init__(self, items: str, *, per_client: int, total: int) -> None:
        self._thread = ThreadPoolExecutor(1, items.replace(" ", "-"))
        self._queue: FairQueue[_QueuedWork[Result]] = FairQueue(
            items, per_client=per_client, total=total
        )
        self._items = items
        self._is_busy = False
        self._is_closed = False

    async def run(self, client: str, call: Callable[[], Result]) -> Result:
        """Returns what the call returns.

        Args:
            client: who has sent it: all of one client's wait for one another.

        Raises:
            Overloaded: too many wait.
            BackendUnavailable: the thread is closed.
            Exception: what the call raises.
        """
        if self._is_closed:
            raise _closed()
        job: _QueuedWork[Result] = _QueuedWork(call, asyncio.get_running_loop().create_future())
        displaced = self._queue.add(client, job)
        if displaced is not None:
            _refuse(displaced, Overloaded(f"too many {self._items} of this client are waiting"))
        self._begin_next()
        try:
            return await job.done
        finally:
            self._queue.discard(client, job)
            # An error's traceback has this frame, and would keep itself and a body alive by it
            # until the next collection of garbage.
            del job

    def close(self) -> None:
        """Refuses all that wait. The thread ends when the call that it is at has ended."""
        self._is_closed = True
        for job in self._queue.clear():
            _refuse(job, _closed())
        self._thread.shutdown(wait=False)

    def _begin_next(self) -> None:
        if self._is_busy:
            return
        job = self._queue.take()
        if job is not None:
            self._is_busy = True
            work = asyncio.get_running_loop().run_in_executor(self._thread, job.call)
            work.add_done_callback(lambda work: self._end(job, work))

    def _end(self, job: _QueuedWork[Result], work: asyncio.Future[Result]) -> None:
        self._is_busy = False
        error = work.exception()
        if error is not None:
            _refuse(job, error)
        elif not job.done.done():
            job.done.set_result(work.result())
        self._begin_next()


def _closed() -> BackendUnavailable:
    return BackendUnavailable("the server is shutting down")


def _refuse(job: _QueuedWork[Result], error: BaseException) -> None:
    if not job.done.done():
        job.done.set_exception(error)
