"""Runs jobs one after another on a thread of their own, which nobody has to wait for."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class JobThread:
    """A thread that ends with the process even where a job hangs, as reading from a broken disk
    may."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_closing(self) -> bool:
        """Whether jobs should come to an end."""
        return self._closing.is_set()

    def do(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def pause(self, seconds: float) -> None:
        """Sleeps, in a job, at most until the thread is to end."""
        self._closing.wait(seconds)

    def close(self, timeout: float) -> bool:
        """Ends the thread after the job that runs, and returns whether that has ended in time."""
        self._closing.set()
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self.is_closing:
                return
            try:
                job()
            except Exception:
                logger.exception("the thread %s has failed", self._thread.name)
