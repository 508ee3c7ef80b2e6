"""Backends that compute in a separate process, which runs in slices between engine steps."""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from fastovms.backends.engine_thread import MAX_SLICE, ComputeTurn
from fastovms.backends.job_thread import JobT, JobThread
from fastovms.backends.processes import ChildProcess, InputRefused, WorkerFailed, receive, send
from fastovms.errors import ConfigurationError, EngineFailed, InvalidField
from fastovms.fair_queue import FairQueue
from fastovms.params import ModelInfo

logger = logging.getLogger(__name__)

Info = TypeVar("Info")
Answer = TypeVar("Answer")

StartProcess = Callable[[], tuple[ChildProcess, Info]]
"""Starts the process that runs the model, and waits until it has loaded it. Raises
ConfigurationError if it cannot."""


class _ProcessEnded(Exception):
    """The process has ended, or closed its connection, instead of answering."""


def start_process(module: str, load: object, info: type[Info]) -> tuple[ChildProcess, Info]:
    """Starts a process and waits until it has loaded its model; takes seconds. Raises
    ConfigurationError if the model cannot be loaded.

    Args:
        module: the module of the process.
        load: the message that asks it to load a model from `load.model_dir`. The answer is an
            `info` or `WorkerFailed`.
    """
    # A stopped process could not exit by itself when its connection ends.
    process = ChildProcess(module, dies_with_thread=True)
    model_dir = getattr(load, "model_dir", "the model")
    answer = process.ask(load, f"{model_dir} cannot be loaded: its process")
    if isinstance(answer, info):
        return process, answer
    process.close()
    raise ConfigurationError(answer.reason)


class SlicedProcess(JobThread[JobT], Generic[JobT, Info]):
    """A backend whose thread passes pieces of jobs to a process, one at a time.

    While engines have work, the process runs only in slices between their steps: SIGSTOP stops it
    at the end of each slice, at any point, and SIGCONT resumes it. Clients take turns with their
    pieces. If the process dies, the current job fails, and another process is started.

    The process is started by the thread, and is killed when the thread ends, even if it is stopped.
    Creating a backend takes seconds. Raises ConfigurationError if the model cannot be loaded.
    """

    items: ClassVar[str]
    """The plural noun for the backend's jobs, for messages."""

    work: ClassVar[str]
    """The verb for the process's work, for messages."""

    def __init__(
        self,
        model: ModelInfo,
        start: StartProcess[Info],
        *,
        max_num_queued: int,
        turn: ComputeTurn,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(model, turn, max_num_queued=max_num_queued, clock=clock)
        self._start = start
        self._waiting: FairQueue[JobT] = FairQueue(
            self.items, per_client=max_num_queued, total=2 * max_num_queued
        )
        self._is_stopped = False
        loaded: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=[loaded], name=self.name, daemon=True).start()
        error = loaded.get()
        if error is not None:
            raise error

    @abstractmethod
    def _compute(self, job: JobT) -> bool:
        """Computes the next piece of a job by `_ask`, on the thread. Returns whether more pieces
        are left. Raises EngineFailed if the piece cannot be computed, and InvalidField if the
        request is at fault."""

    def fail(self, reason: str) -> None:
        super().fail(reason)
        self._peer.kill()

    def _stop(self) -> bool:
        self._peer.kill()  # the process has no state to save
        return True

    # Thread

    def _run(self, loaded: queue.SimpleQueue[Exception | None]) -> None:
        try:
            self._peer, self._info = self._start()
        except Exception as error:
            loaded.put(error)
            return
        loaded.put(None)
        try:
            while self.failure is None and self._receive():
                job = self._waiting.take()
                if job is not None and not job.is_given_up:
                    self._advance(job)
        except BaseException as error:
            logger.exception("%s: the thread has failed", self.name)
            self._link.call(self.fail, f"{type(error).__name__}: {error}")
        finally:
            self._turn.remove_encoder()
            self._peer.end()
            self._link.call(self._link.stopped.set)

    def _receive(self) -> bool:
        """Receives new jobs, and waits for work. Returns whether to continue."""
        while not self._commands.empty() or not len(self._waiting):
            job = self._commands.get()
            if job is None:
                return False
            if job.is_given_up:
                self._waiting.discard(job.client, job)
            else:
                self._waiting.add(job.client, job)
        return True

    def _advance(self, job: JobT) -> None:
        """Computes the next piece of a job, and queues the job again if more are left."""
        try:
            is_unfinished = self._compute(job)
        except _ProcessEnded as end:
            self._revive(job, end)
            return
        except (EngineFailed, InvalidField) as error:
            self._link.call(job.settle, error)
            return
        if is_unfinished:
            self._waiting.add(job.client, job)

    def _ask(self, message: object, answer: type[Answer], on_part: Callable[[Any], None]) -> Answer:
        """Returns the process's answer to a message. Raises EngineFailed if the answer is
        `WorkerFailed`, InvalidField if it is `InputRefused`, and _ProcessEnded if the process ends.

        Args:
            on_part: called with each message that comes before the answer.
        """
        self._num_running = 1
        try:
            found = self._answer(message, answer, on_part)
        except (EOFError, ConnectionError) as error:
            raise _ProcessEnded from error
        finally:
            self._num_running = 0
        if isinstance(found, InputRefused):
            raise InvalidField(found.reason, param=found.param)
        if isinstance(found, WorkerFailed):
            raise EngineFailed(found.reason)
        return found

    def _answer(
        self, message: object, answer: type[Answer], on_part: Callable[[Any], None]
    ) -> Answer | WorkerFailed | InputRefused:
        connection = self._peer.connection
        is_sent = False
        found: Answer | WorkerFailed | InputRefused | None = None
        while found is None:
            with self._turn.slice():
                self._signal(is_stopped=False)
                start = self._clock()
                if not is_sent:
                    send(connection, message)
                    is_sent = True
                seconds = self._turn.slice_seconds
                end = start + (MAX_SLICE if seconds is None else seconds)
                while found is None and connection.poll(max(0.0, end - self._clock())):
                    received = receive(connection)
                    if isinstance(received, answer | WorkerFailed | InputRefused):
                        found = received
                    else:
                        on_part(received)
                if found is None and self._turn.slice_seconds is not None:
                    self._signal(is_stopped=True)
            self._note_step(self._clock() - start)
        return found

    def _signal(self, *, is_stopped: bool) -> None:
        if is_stopped is not self._is_stopped:
            self._is_stopped = is_stopped
            self._peer.send_signal(signal.SIGSTOP if is_stopped else signal.SIGCONT)

    def _revive(self, job: JobT, end: _ProcessEnded) -> None:
        """Starts another process after one has died with a job. Raises ConfigurationError if it
        cannot be started."""
        exit_description = self._peer.close()
        if self._closing or self.failure is not None:
            return
        logger.error(
            "%s: the process %s (%r) and is started again",
            self.name,
            exit_description,
            end.__cause__,
        )
        reason = f"the process that {self.work} {exit_description}"
        self._link.call(job.settle, EngineFailed(reason))
        self._peer, self._info = self._start()
        self._is_stopped = False
