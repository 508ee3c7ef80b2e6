"""Base class of backends that compute many clients' requests on one thread."""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Final, Generic, TypeVar

from fastovms.backend_stats import STEP_BUCKETS, BackendStats, EngineCounters, Histogram
from fastovms.backends.engine_thread import ComputeTurn, LoopLink
from fastovms.errors import BackendUnavailable, EngineFailed, Overloaded
from fastovms.fair_queue import Shares
from fastovms.params import ModelInfo
from fastovms.telemetry.metrics import GenerationMetrics

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT: Final = 10.0
"""Seconds to wait for the thread when a backend is closed."""

Result = TypeVar("Result")


class Job(Generic[Result]):
    """A request to a `JobThread`.

    Attributes:
        client: the sender; clients take turns.
        queued_at: when it was queued.
        is_given_up: whether it was cancelled.
    """

    def __init__(self, client: str, queued_at: float) -> None:
        self.client = client
        self.queued_at = queued_at
        self.is_given_up = False
        self.done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def settle(self, outcome: Result | Exception) -> None:
        """Sets the result or error, unless the request has ended. Runs on the event loop."""
        if self.done.done():
            return
        if isinstance(outcome, Exception):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)


JobT = TypeVar("JobT", bound=Job[Any])


class JobThread(Generic[JobT]):
    """A backend whose thread computes jobs. A subclass starts the thread, which takes jobs from
    `_commands` until it gets None. A cancelled job is put in the queue once more, so that the
    thread drops it.

    Attributes:
        failure: why the thread has stopped computing; None = still running.
    """

    name: ClassVar[str]
    """The name of the thread, for the log."""

    def __init__(
        self,
        model: ModelInfo,
        turn: ComputeTurn,
        max_num_queued: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model = model
        self.failure: str | None = None
        self._turn = turn
        self._places = Shares.of_places(max_num_queued)
        self._clock = clock
        self._commands: queue.SimpleQueue[JobT | None] = queue.SimpleQueue()
        self._jobs: dict[JobT, None] = {}  # by arrival
        self._num_running = 0
        self._counters = EngineCounters()
        self._steps = Histogram(STEP_BUCKETS)
        self._longest = 0.0
        self._link = LoopLink()
        self._closing = False

    def start(self) -> None:
        """Uses the running event loop, and takes turns with engines from now on. A subclass also
        starts its thread."""
        self._link.start()
        self._turn.add_encoder()

    async def warmed_up(self) -> None:
        """Returns at once: the first, slow steps are computed during loading."""

    def metrics(self, device: str) -> GenerationMetrics:
        """Returns the metrics of the model, which has no KV cache."""
        labels = {"max_model_len": str(self.model.max_model_len), "device": device}
        return GenerationMetrics(self.model.name, self.stats, labels=labels, has_kv_cache=False)

    @contextmanager
    def _place(self, client: str) -> Iterator[None]:
        """Holds one queue place for a client's request within the context. Raises Overloaded if the
        client has reached its share of the queue."""
        if not self._places.take(client):
            raise Overloaded(f"{self._places.used} requests are waiting, which is the limit")
        try:
            yield
        finally:
            self._places.give_back(client)

    async def _result_of(self, job: JobT) -> Any:
        """Queues a job, and returns its result. Raises EngineFailed or BackendUnavailable if the
        backend accepts no jobs."""
        if self.failure is not None:
            raise EngineFailed(f"the engine has failed: {self.failure}")
        if not self._link.is_started or self._closing:
            raise BackendUnavailable(f"the server is not ready to serve {self.model.name}")
        self._jobs[job] = None
        self._commands.put(job)
        try:
            return await job.done
        finally:
            job.is_given_up = True
            self._jobs.pop(job, None)
            if job.done.cancelled():
                self._commands.put(job)

    def stats(self) -> BackendStats:
        """Returns the statistics, for metrics."""
        num_running = self._num_running
        return BackendStats(
            num_running=num_running,
            num_waiting=max(0, self._num_left() - num_running),
            longest_step_seconds=self._longest,
            step_seconds=self._steps,
            counters=replace(self._counters),
        )

    def _note_step(self, seconds: float) -> None:
        self._counters.num_steps += 1
        self._steps.observe(seconds)
        self._longest = max(self._longest, seconds)

    def _num_left(self) -> int:
        """Returns the number of running and waiting pieces of work."""
        return len(self._jobs)

    def fail(self, reason: str) -> None:
        """Ends all jobs with EngineFailed, unless the backend has failed already."""
        if self.failure is None:
            self.failure = reason
            self._end_all(EngineFailed(reason))

    async def close(self) -> None:
        """Ends all jobs with BackendUnavailable, and stops the thread."""
        if not self._link.is_started or self._closing:
            return
        self._closing = True
        self._end_all(BackendUnavailable("the server is shutting down"))
        self._commands.put(None)
        if self._stop() and not await self._link.wait(_CLOSE_TIMEOUT):
            logger.error(
                "%s: still computes %g s after the shutdown began; it is abandoned",
                self.name,
                _CLOSE_TIMEOUT,
            )

    def _stop(self) -> bool:
        """Stops the current computation if possible. Returns whether the thread will end."""
        return self.failure is None

    def _end_all(self, error: Exception) -> None:
        for job in self._jobs:
            job.settle(error)
