"""Runs the store's operations on threads, one per database connection."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fastovms.errors import StateFailed, StateNotLoaded
from fastovms.state.database import Operation, OperationOutcome
from fastovms.state.operations import Operations
from fastovms.state.running_responses import ONLY_REPLICA, Replica
from fastovms.state.store import (
    StateStats,
    Watch,
    Watchers,
    response_topic,
)
from fastovms.state.tables import Totals

logger = logging.getLogger(__name__)


class StateDatabase(Protocol):
    """A database with the state, used by one thread."""

    @property
    def is_on_disk(self) -> bool:
        """Whether the data survive the process."""

    @property
    def totals(self) -> Totals:
        """The last known totals. Thread-safe."""

    @property
    def trouble(self) -> str:
        """The reason why the state is not on disk or not available; "" = available. Thread-safe."""

    def transact(self, operations: Sequence[Operation]) -> list[OperationOutcome]:
        """Runs operations and returns their outcomes; never raises. A failing operation does not
        affect the others."""

    def do_maintenance(self) -> float:
        """Does due maintenance, such as evictions. Returns the seconds until the next call is due.
        Raises StateFailed on failure."""

    def close(self) -> None:
        """Closes the database."""


_PREFIX: Final = "fastovms_"


class StateCollector(Collector):
    """Exports metrics of the store and of background responses.

    Args:
        stats: returns the store's statistics; called at every scrape.
        num_background: returns the number of running background responses.
    """

    def __init__(self, stats: Callable[[], StateStats], num_background: Callable[[], int]) -> None:
        self._stats = stats
        self._num_background = num_background

    def collect(self) -> Iterable[Metric]:
        num_objects, num_bytes, num_failures, is_on_disk = self._stats()
        for name, text, value in (
            ("state_objects", "Responses and conversations kept", num_objects),
            ("state_bytes", "Bytes of the responses and conversations kept", num_bytes),
            ("state_on_disk", "1 if responses and conversations outlive the process", is_on_disk),
            (
                "background_responses",
                "Responses that run in the background",
                self._num_background(),
            ),
        ):
            yield GaugeMetricFamily(_PREFIX + name, text, value=value)
        text = "Operations of the response store that failed"
        yield CounterMetricFamily(f"{_PREFIX}state_failures", text, value=num_failures)


_MAX_BATCH: Final = 256
"""The maximum number of operations in one transaction."""

_RETRY: Final = 10.0
"""Seconds after which failed maintenance, such as an eviction, is retried."""

P = ParamSpec("P")
T = TypeVar("T")


class _QueuedOperation(NamedTuple):
    """An operation, and the future of its result."""

    operation: Operation
    future: asyncio.Future[object]


class StateWorker:
    """Runs operations on threads, in the order of the calls. With one database, transactions run
    one after another; with several connections to the same state, several run at once. Operations
    that are added during a transaction share the next one, so a higher load needs fewer commits per
    operation.

    Args:
        databases: the connections; each gets a thread.
        max_queued: the maximum number of queued operations; further callers wait.
        timeout: seconds after which an operation, including its wait, fails.

    Attributes:
        num_failures: the number of operations that failed because of the database.
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
        """Runs an operation, and returns its result after the commit. The operation is run even if
        the caller is cancelled.

        Raises:
            StateFailed: the operation failed without changes, or exceeded the timeout. After a
                timeout, further calls fail at once until the thread makes progress.
            Exception: the error of the operation, which changed nothing.
        """
        if self._is_stuck:
            raise StateFailed("responses cannot be stored: the store does not respond")
        future: asyncio.Future[object] | None = None
        try:
            async with asyncio.timeout(self._timeout):
                await self._room.acquire()
                future = self._enqueue(operation)
                return cast("T", await future)
        except TimeoutError:
            if future is not None and future.done() and not future.cancelled():
                # The result arrived in the same pass of the event loop as the timeout.
                return cast("T", future.result())
            # Without pending operations nothing would ever reset the flag.
            self._is_stuck = self._num_unsettled > 0
            raise StateFailed(
                f"the response was not stored within {self._timeout:g} seconds"
            ) from None

    async def close(self) -> None:
        """Ends the threads when the queue is empty, and closes the databases. Does not wait for a
        hanging thread."""
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
                raise StateFailed("the response store is closed")
            self._jobs.append(_QueuedOperation(operation, future))
            self._changed.notify()
        self._num_unsettled += 1
        return future

    def _settle(self, jobs: list[_QueuedOperation], outcomes: list[OperationOutcome]) -> None:
        """Sets the results of operations, on the event loop."""
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
            while (jobs := self._take(self._do_maintenance(database))) is not None:
                if jobs and not self._report(jobs, self._transact(database, jobs)):
                    return
        finally:
            database.close()

    def _take(self, wait: float) -> list[_QueuedOperation] | None:
        """Returns the next operations; an empty list after `wait` seconds; None = closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closing, wait)
            if self._closing and not self._jobs:
                return None
            return [self._jobs.popleft() for _ in range(min(len(self._jobs), _MAX_BATCH))]

    def _transact(
        self, database: StateDatabase, jobs: list[_QueuedOperation]
    ) -> list[OperationOutcome]:
        outcomes = database.transact([job.operation for job in jobs])
        failures = [
            error
            for _, error in outcomes
            if isinstance(error, StateFailed) and not isinstance(error, StateNotLoaded)
        ]
        reason = str(failures[0]) if failures else ""
        with self._changed:
            self.num_failures += len(failures)
            is_new, self._last_failure = reason != self._last_failure, reason
        if reason and is_new:  # log an outage only once
            logger.error(
                "response store: %d of %d operations failed: %s", len(failures), len(jobs), reason
            )
        return outcomes

    def _report(self, jobs: list[_QueuedOperation], outcomes: list[OperationOutcome]) -> bool:
        """Schedules `_settle` on the event loop. Returns False if the loop is closed."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._settle, jobs, outcomes)
        except RuntimeError:
            logger.debug("response store: the event loop has ended before the store was closed")
            return False
        return True

    def _do_maintenance(self, database: StateDatabase) -> float:
        """Does due maintenance. Errors are logged, and operations continue.

        Returns:
            The seconds until the next call.
        """
        try:
            return database.do_maintenance()
        except StateFailed as error:
            logger.error("response store: cannot delete old responses: %s", error)
        except Exception:
            logger.exception("response store: cannot delete old responses")
        return _RETRY


class StateStore:
    """Stores responses, items and conversations. With `readers`, read-only operations run on
    separate threads and do not wait for writing operations.

    Objects are JSON strings that the store does not interpret, with ordered items. Each belongs to
    one tenant, and does not exist for others. A changing operation returns once the change is
    durable. Several replicas may share one store. A running response is owned by the replica that
    runs it, as long as that replica renews its lease; other replicas follow it by the store's
    notifications.

    Args:
        database: the connection for writing, and for reading without `readers`.
        more: further connections to the same state.
        readers: connections to the same state for reading.
        replica: the identity of this process in the databases.
        watchers: the watchers of changes by other replicas, if the state is shared.
        max_queued: the maximum number of queued operations; further callers wait.
        timeout: seconds after which an operation, including its wait, fails.
    """

    def __init__(
        self,
        database: StateDatabase,
        *more: StateDatabase,
        readers: Sequence[StateDatabase] = (),
        replica: Replica = ONLY_REPLICA,
        watchers: Watchers | None = None,
        max_queued: int = 1024,
        timeout: float = 30.0,
    ) -> None:
        self._database = database
        start = partial(StateWorker, max_queued=max_queued, timeout=timeout)
        writing = start([database, *more])
        reading = start(readers) if readers else writing
        self._workers = {writing, reading}
        self._writing, self._reading = writing, reading
        self._replica = replica
        self._watchers = watchers or Watchers()

    def stats(self) -> StateStats:
        """Returns the store's statistics. Thread-safe."""
        return StateStats(
            *self._database.totals,
            num_failures=sum(worker.num_failures for worker in self._workers),
            is_on_disk=self._database.is_on_disk,
        )

    def trouble(self) -> str:
        """Returns the reason why the state is not stored as configured; "" = no trouble."""
        return self._database.trouble

    async def run(
        self, operation: Callable[Concatenate[Operations, P], T], *args: P.args, **fields: P.kwargs
    ) -> T:
        """Runs an operation, such as `Operations.find_item`, with these arguments.

        Returns its result, once its transaction has been committed.

        Raises:
            StateFailed: the operation failed without changes, or exceeded the timeout.
            Exception: the error of the operation, which changed nothing.
        """
        worker = self._reading if getattr(operation, "reads", False) else self._writing
        return await worker.run(lambda state: operation(state, *args, **fields))

    @property
    def lease(self) -> float | None:
        """Returns the seconds after which this replica loses a response if it does not renew the
        lease; None = the store is not shared, and leases do not expire."""
        return None if self._replica is ONLY_REPLICA else self._replica.lease

    async def request_cancel(self, tenant: str, id: str) -> bool:
        """Asks the replica that runs a response to cancel it. Returns False if no replica runs
        it."""
        runs = await self.run(Operations.request_cancel, tenant, id)
        if runs:  # a database of one process sends no notifications
            self._watchers.wake(self._replica.id)
        return runs

    def watch_response(self, tenant: str, id: str) -> AbstractContextManager[Watch]:
        """Watches a response, in a `with` statement, for changes by other replicas. Some changes
        may be missed, so check again after at most a second."""
        return self._watchers.watch(response_topic(tenant, id))

    def watch_cancels(self) -> AbstractContextManager[Watch]:
        """Watches, like `watch_response`, for cancellations and losses of responses that this
        replica owns."""
        return self._watchers.watch(self._replica.id)

    async def close(self) -> None:
        """Completes the queued operations, and closes the databases."""
        await self._watchers.close()
        for worker in self._workers:
            await worker.close()
