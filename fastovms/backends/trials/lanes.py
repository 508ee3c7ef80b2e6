"""Tries grammars fairly: each for a short time first, and those that take longer again where only
others of their kind wait."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final, Generic, Protocol, TypeVar

from fastovms.backend_stats import GrammarStats
from fastovms.backends.processes.deep_stack import start_thread
from fastovms.backends.trials.trial import TOO_MUCH, TakesLonger
from fastovms.errors import BackendUnavailable, Overloaded
from fastovms.fair_queue import FairQueue
from fastovms.grammar.grammar_faults import UnusableGrammar
from fastovms.params import Grammar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)

_MAX_SECONDS: Final = 4.5
"""Seconds that one grammar may take, waiting included. Who asks again after this may find it
ready."""

_FIRST: Final = (32, 256)
"""How many grammars of one client, and of all, may wait for the first lane."""
_LATER: Final = (8, 32)
"""The same for each of the other lanes."""


class Lane(Protocol[Result_co]):
    """A place where one grammar at a time is tried. Methods but `kill` are called on the lane's own
    thread."""

    @property
    def num_deaths(self) -> int:
        """How many processes have not survived their grammar."""

    def warm_up(self) -> None:
        """Makes the lane ready for the first grammar. It raises nothing."""

    def attempt(self, grammar: Grammar, *, is_last: bool) -> Result_co:
        """Tries a grammar, and makes of it what the caller of `TrialLanes.run` wants.

        Args:
            is_last: whether no other lane has more time.

        Raises:
            TakesLonger: the grammar needs more time than this lane has, and it is not the last.
            RequestError: the grammar cannot be used.
            BackendError: it cannot be tried now.
        """

    def kill(self) -> None:
        """Ends what the lane is trying."""

    def close(self) -> None:
        """Frees what the lane holds."""


class _QueuedGrammar(Generic[Result]):
    """A grammar on its way through the lanes, and what comes of it.

    Attributes:
        is_begun: whether a lane has had it, so that `done` can no longer be cancelled.
        is_wanted: whether somebody waits for it.
    """

    __slots__ = ("client", "done", "grammar", "is_begun", "is_wanted")

    def __init__(self, grammar: Grammar, client: str) -> None:
        self.grammar = grammar
        self.client = client
        self.done: Future[Result] = Future()
        self.is_begun = False
        self.is_wanted = True


class TrialLanes(Generic[Result]):
    """Tries grammars in lanes, each of which has a thread of its own and takes the clients in turn.

    Args:
        lanes: the one with the least time first. It is warm from `start` on, the others from their
            first grammar on.
    """

    def __init__(self, lanes: Sequence[Lane[Result]], *, max_seconds: float = _MAX_SECONDS) -> None:
        self._lanes = tuple(lanes)
        self._max_seconds = max_seconds
        self._changed = threading.Condition()  # guards everything below
        limits = [_FIRST, *[_LATER] * (len(lanes) - 1)]
        self._queues: list[FairQueue[_QueuedGrammar[Result]]] = [
            FairQueue("grammars", per_client=per_client, total=total)
            for per_client, total in limits
        ]
        self._threads: dict[int, threading.Thread] = {}
        self._num_running = 0
        self._num_trials = 0
        self._num_overloads = 0
        self._is_closed = False

    @property
    def stats(self) -> GrammarStats:
        with self._changed:
            return GrammarStats(
                num_running=self._num_running,
                num_waiting=sum(map(len, self._queues)),
                num_trials=self._num_trials,
                num_deaths=sum(lane.num_deaths for lane in self._lanes),
                num_overloads=self._num_overloads,
            )

    def start(self) -> None:
        """Makes the first lane warm, without waiting until it is."""
        with self._changed:
            self._start_lane(0)

    async def run(self, grammar: Grammar, client: str) -> Result:
        """Returns what a lane makes of the grammar.

        Args:
            client: who has sent it: all of one client's wait for one another.

        Raises:
            Overloaded: too many wait, or this one has waited for too long.
            RequestError: the grammar cannot be used.
            BackendUnavailable: the lanes are closed, or cannot try anything.
        """
        job: _QueuedGrammar[Result] = _QueuedGrammar(grammar, client)
        try:
            self._enter(job, 0)
            async with asyncio.timeout(self._max_seconds):
                return await asyncio.wrap_future(job.done)
        except TimeoutError:
            self._num_overloads += 1
            raise Overloaded(
                f"{grammar.param}: the grammar could not be tried within {self._max_seconds:g} s"
            ) from None
        except Overloaded as error:
            self._num_overloads += 1
            raise Overloaded(f"{grammar.param}: {error}") from None
        finally:
            with self._changed:
                job.is_wanted = False
                for queue in self._queues:
                    queue.discard(client, job)

    def close(self) -> None:
        """Ends all lanes. Their threads free what they hold."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            waiting = [job for queue in self._queues for job in queue.clear()]
            started = [self._lanes[number] for number in self._threads]
            self._changed.notify_all()
        for job in waiting:
            _refuse(job, BackendUnavailable("the server is shutting down"))
        for lane in started:
            lane.kill()

    def _enter(self, job: _QueuedGrammar[Result], number: int) -> None:
        """Puts a job into a lane's queue.

        Raises:
            Overloaded: too many wait.
            BackendUnavailable: the lanes are closed.
        """
        with self._changed:
            if self._is_closed:
                raise BackendUnavailable("the server is shutting down")
            if not job.is_wanted:
                raise Overloaded("nobody waits for it any more")
            displaced = self._queues[number].add(job.client, job)
            self._start_lane(number)
            self._changed.notify_all()
        if displaced is not None:
            _refuse(displaced, Overloaded("too many grammars of this client are waiting"))

    def _start_lane(self, number: int) -> None:
        if number not in self._threads and not self._is_closed:
            self._threads[number] = start_thread(
                lambda: self._serve(number), name=f"grammar-lane-{number}"
            )

    # The lanes' threads

    def _serve(self, number: int) -> None:
        """Serves the lane until it is closed. Should this fail, the next job starts it again."""
        lane = self._lanes[number]
        try:
            lane.warm_up()
            while (job := self._take(number)) is not None:
                try:
                    self._attempt(job, number)
                finally:
                    with self._changed:
                        self._num_running -= 1
        except Exception:
            logger.exception("a lane of grammars has failed")
        finally:
            try:
                lane.close()
            finally:
                with self._changed:
                    del self._threads[number]
                    stranded = self._queues[number].clear()
                for job in stranded:
                    _refuse(job, BackendUnavailable("grammars cannot be compiled now"))

    def _take(self, number: int) -> _QueuedGrammar[Result] | None:
        with self._changed:
            while not self._is_closed:
                job = self._queues[number].take()
                if job is None:
                    self._changed.wait()
                elif job.is_begun or job.done.set_running_or_notify_cancel():
                    job.is_begun = True
                    self._num_running += 1
                    self._num_trials += 1
                    return job
        return None

    def _attempt(self, job: _QueuedGrammar[Result], number: int) -> None:
        is_last = number + 1 == len(self._lanes)
        try:
            job.done.set_result(self._lanes[number].attempt(job.grammar, is_last=is_last))
        except TakesLonger:
            try:
                self._enter(job, number + 1)
            except (Overloaded, BackendUnavailable) as error:
                job.done.set_exception(error)
        except Exception as error:
            job.done.set_exception(error)
        except BaseException:  # a panic of Rust is no Exception
            logger.exception("a grammar's compiler has panicked")
            job.done.set_exception(UnusableGrammar(job.grammar, TOO_MUCH))


def _refuse(job: _QueuedGrammar[Result], error: Exception) -> None:
    if job.is_begun or job.done.set_running_or_notify_cancel():
        job.is_begun = True
        job.done.set_exception(error)
