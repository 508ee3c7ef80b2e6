"""Uses the state database on a thread of its own, and carries operations from and to the event
loop.

What is asked while a transaction runs goes into the next one together: the more there is to do, the
fewer commits are made for it.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar, cast

from fastovms.errors import StateFailed
from fastovms.state.database import Database, Operation, OperationOutcome
from fastovms.state.disk_return import DiskReturn
from fastovms.state.operations import Operations
from fastovms.state.tables import Totals

logger = logging.getLogger(__name__)

_MAX_BATCH: Final = 256
"""How many operations one transaction may have."""

_MAX_WAIT: Final = 3600.0
"""Seconds after which the thread looks for what is too old, at the latest."""

_RETRY: Final = 10.0
"""Seconds after which housekeeping that failed, such as an eviction, is tried again."""

T = TypeVar("T")


class _QueuedOperation(NamedTuple):
    operation: Operation
    future: asyncio.Future[object]


class StateWorker:
    """Runs operations in order.

    Args:
        disk_return: moves the state to the disk, if it is in memory only until that can be had.
        max_queued: how many operations may wait; who asks for more waits with them.
        timeout: seconds that an operation may take with its wait, before it counts as failed.

    Attributes:
        num_failures: how many operations the database has failed.
    """

    def __init__(
        self,
        database: Database,
        disk_return: DiskReturn | None = None,
        *,
        max_queued: int,
        timeout: float,
    ) -> None:
        self._database = database
        self._disk_return = disk_return
        self._timeout = timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room = asyncio.Semaphore(max_queued)
        self._changed = threading.Condition()
        self._jobs: deque[_QueuedOperation] = deque()
        self._closing = False
        self._is_stuck = False
        self.num_failures = 0
        self._thread = threading.Thread(target=self._run, name="state", daemon=True)
        self._thread.start()

    @property
    def totals(self) -> Totals:
        return self._database.totals

    @property
    def is_on_disk(self) -> bool:
        return self._database.is_on_disk

    @property
    def wants_disk(self) -> str | None:
        """Returns why the state is in memory though it belongs on the disk; None = it is where it
        belongs."""
        disk_return = self._disk_return
        return None if disk_return is None else disk_return.reason

    async def run(self, operation: Callable[[Operations], T]) -> T:
        """Runs an operation, and returns what it returned once its transaction has been committed.
        It is done also when the caller is cancelled while it waits in the queue.

        Raises:
            StateFailed: it changed nothing, or takes longer than the timeout. Once one has done so,
                others fail at once until the thread has done something: they would only wait.
            Exception: what the operation raised; it changed nothing.
        """
        if self._is_stuck:
            raise StateFailed("the state is not written: its disk does not answer")
        try:
            async with asyncio.timeout(self._timeout):
                await self._room.acquire()
                return cast("T", await self._enqueue(operation))
        except TimeoutError:
            self._is_stuck = True
            raise StateFailed(
                f"the state was not written within {self._timeout:g} seconds"
            ) from None

    async def close(self) -> None:
        """Ends the thread when its queue is empty, and closes the database. It does not wait for a
        disk that hangs."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, self._timeout)

    def _enqueue(self, operation: Operation) -> asyncio.Future[object]:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = self._loop.create_future()
        with self._changed:
            if self._closing:
                self._room.release()
                raise StateFailed("the state is closed")
            self._jobs.append(_QueuedOperation(operation, future))
            self._changed.notify()
        return future

    def _settle(self, jobs: list[_QueuedOperation], outcomes: list[OperationOutcome]) -> None:
        """Gives jobs their outcomes, on the event loop."""
        self._is_stuck = False
        for job, (result, error) in zip(jobs, outcomes, strict=True):
            self._room.release()
            if job.future.done():
                continue
            if error is None:
                job.future.set_result(result)
            else:
                job.future.set_exception(error)

    # The thread

    def _run(self) -> None:
        try:
            while (jobs := self._take(self._keep_house())) is not None:
                if jobs and not self._report(jobs, self._transact(jobs)):
                    return
        finally:
            self._database.close()

    def _take(self, wait: float) -> list[_QueuedOperation] | None:
        """Returns the next jobs; none when `wait` seconds have passed; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closing, wait)
            if self._closing and not self._jobs:
                return None
            return [self._jobs.popleft() for _ in range(min(len(self._jobs), _MAX_BATCH))]

    def _transact(self, jobs: list[_QueuedOperation]) -> list[OperationOutcome]:
        outcomes = self._database.transact([job.operation for job in jobs])
        failures = [error for _, error in outcomes if isinstance(error, StateFailed)]
        if failures:
            self.num_failures += len(failures)
            logger.error("%d of %d operations: %s", len(failures), len(jobs), failures[0])
        return outcomes

    def _report(self, jobs: list[_QueuedOperation], outcomes: list[OperationOutcome]) -> bool:
        """Has the event loop settle the jobs. Returns whether there still is a loop."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._settle, jobs, outcomes)
        except RuntimeError:
            logger.debug("the event loop has ended before the state was closed")
            return False
        return True

    def _keep_house(self) -> float:
        """Does what is due though nobody has asked for it. Whatever fails there, operations go on.

        Returns:
            The seconds after which to do so again.
        """
        try:
            return min(self._return_to_disk(), self._evict())
        except sqlite3.Error as error:
            logger.error("nothing is evicted from the state: %s", error)
        except Exception:
            logger.exception("the state is not kept within its bounds")
        return _RETRY

    def _return_to_disk(self) -> float:
        """Tries to move the state to the disk if it is due. Returns the seconds after which to try
        again."""
        if self._disk_return is None:
            return _MAX_WAIT
        if seconds := self._disk_return.seconds_left():
            return seconds
        database = self._disk_return.attempt(self._database)
        if database is None:
            return self._disk_return.seconds_left()
        memory, self._database, self._disk_return = self._database, database, None
        memory.close()
        return _MAX_WAIT

    def _evict(self) -> float:
        """Evicts what is due. Returns the seconds after which to try again.

        Raises:
            sqlite3.Error: nothing is evicted.
        """
        if self._database.evict():
            return 0.0
        expiry = self._database.seconds_to_expiry()
        return _MAX_WAIT if expiry is None else min(expiry, _MAX_WAIT)
