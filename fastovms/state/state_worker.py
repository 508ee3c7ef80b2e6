"""Uses state databases on threads of their own, and carries operations from and to the event loop.

What is asked while a transaction runs goes into the next one together: the more there is to do, the
fewer commits are made for it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar, cast

from fastovms.errors import StateFailed
from fastovms.state.operations import Operations
from fastovms.state.state_database import Operation, OperationOutcome, StateDatabase

logger = logging.getLogger(__name__)

_MAX_BATCH: Final = 256
"""How many operations one transaction may have."""

_RETRY: Final = 10.0
"""Seconds after which housekeeping that failed, such as an eviction, is tried again."""

T = TypeVar("T")


class _QueuedOperation(NamedTuple):
    operation: Operation
    future: asyncio.Future[object]


class StateWorker:
    """Runs operations in the order in which they are asked for: one transaction after the other
    where there is one database, several at once where several lead to the same state.

    Args:
        databases: each gets a thread.
        max_queued: how many operations may wait; who asks for more waits with them.
        timeout: seconds that an operation may take with its wait, before it counts as failed.

    Attributes:
        num_failures: how many operations the database has failed.
    """

    def __init__(
        self,
        databases: Sequence[StateDatabase],
        *,
        max_queued: int,
        timeout: float,
    ) -> None:
        self._timeout = timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room = asyncio.Semaphore(max_queued)
        self._changed = threading.Condition()
        self._jobs: deque[_QueuedOperation] = deque()
        self._closing = False
        self._is_stuck = False
        self._num_unsettled = 0
        self._last_failure = ""
        self.num_failures = 0
        self._threads = [
            threading.Thread(target=self._run, args=[database], name="state", daemon=True)
            for database in databases
        ]
        for thread in self._threads:
            thread.start()

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
        future: asyncio.Future[object] | None = None
        try:
            async with asyncio.timeout(self._timeout):
                await self._room.acquire()
                future = self._enqueue(operation)
                return cast("T", await future)
        except TimeoutError:
            if future is not None and future.done() and not future.cancelled():
                return cast("T", future.result())  # it came in the turn in which the time was up
            # Where nothing is left to settle, nothing would ever take this back.
            self._is_stuck = self._num_unsettled > 0
            raise StateFailed(
                f"the state was not written within {self._timeout:g} seconds"
            ) from None

    async def close(self) -> None:
        """Ends the threads when the queue is empty, and closes the databases. It does not wait for
        one that hangs."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        await asyncio.to_thread(self._join)

    def _join(self) -> None:
        ends_at = time.monotonic() + self._timeout
        for thread in self._threads:
            thread.join(max(0.0, ends_at - time.monotonic()))

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
        self._num_unsettled += 1
        return future

    def _settle(self, jobs: list[_QueuedOperation], outcomes: list[OperationOutcome]) -> None:
        """Gives jobs their outcomes, on the event loop."""
        self._is_stuck = False
        self._num_unsettled -= len(jobs)
        for job, (result, error) in zip(jobs, outcomes, strict=True):
            self._room.release()
            if job.future.done():
                continue
            if error is None:
                job.future.set_result(result)
            else:
                job.future.set_exception(error)

    # The threads

    def _run(self, database: StateDatabase) -> None:
        try:
            while (jobs := self._take(self._keep_house(database))) is not None:
                if jobs and not self._report(jobs, self._transact(database, jobs)):
                    return
        finally:
            database.close()

    def _take(self, wait: float) -> list[_QueuedOperation] | None:
        """Returns the next jobs; none when `wait` seconds have passed; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closing, wait)
            if self._closing and not self._jobs:
                return None
            return [self._jobs.popleft() for _ in range(min(len(self._jobs), _MAX_BATCH))]

    def _transact(
        self, database: StateDatabase, jobs: list[_QueuedOperation]
    ) -> list[OperationOutcome]:
        outcomes = database.transact([job.operation for job in jobs])
        failures = [error for _, error in outcomes if isinstance(error, StateFailed)]
        reason = str(failures[0]) if failures else ""
        with self._changed:
            self.num_failures += len(failures)
            is_new, self._last_failure = reason != self._last_failure, reason
        if reason and is_new:  # not once a request, as long as a disk or a database is gone
            logger.error("%d of %d operations: %s", len(failures), len(jobs), reason)
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

    def _keep_house(self, database: StateDatabase) -> float:
        """Does what is due though nobody has asked for it. Whatever fails there, operations go on.

        Returns:
            The seconds after which to do so again.
        """
        try:
            return database.keep_house()
        except StateFailed as error:
            logger.error("the state is not kept within its bounds: %s", error)
        except Exception:
            logger.exception("the state is not kept within its bounds")
        return _RETRY
