"""Measures how models run fastest while nobody waits for the server.

A process of its own measures, one model after another. It begins when all engines have had nothing
to do for some seconds, and is stopped at whatever it is as soon as one of them has.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from fastovms.backends.engine_thread.working_engines import WorkingEngines
from fastovms.backends.processes.process import ChildProcess, receive, send
from fastovms.config.engine_config import EngineConfig
from fastovms.system.disk_cache import DiskCache

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 5.0
"""How long the engines must have been idle, so that no pause between two requests is taken for it.
"""


class Measurement(NamedTuple):
    """What is to be measured, and where the finding is kept."""

    model_dir: Path
    config: EngineConfig
    cache: DiskCache


class Measuring(Protocol):
    """A process that measures."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def kill(self) -> None: ...

    def result(self) -> str:
        """Waits for its end, and returns what it has found, or why it has found nothing."""


class TuningProcess:
    """Runs `tuning_process`. It is killed when the thread ends that has started it."""

    def __init__(self, measurement: Measurement) -> None:
        module = "fastovms.backends.paged.tuning_process"
        self._process = ChildProcess(module, str(os.getpid()))
        send(self._process.connection, measurement)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()

    def result(self) -> str:
        with self._process.connection:
            try:
                found = str(receive(self._process.connection))
            except (EOFError, OSError):
                found = ""
        fate = self._process.wait()
        return found or f"the process that measures {fate}"


class IdleTuning:
    """Starts, stops and continues measurements as the engines of a server work and rest. Its
    methods may be called on any thread.

    Args:
        engines: counts those that work: nothing is measured while there are any.
        start: starts a process that measures.
        delay: seconds that all engines must have been idle.
    """

    def __init__(
        self,
        engines: WorkingEngines,
        start: Callable[[Measurement], Measuring] = TuningProcess,
        delay: float = IDLE_SECONDS,
    ) -> None:
        self._start = start
        self._delay = delay
        self._changed = threading.Condition()
        self._num_working = 0
        self._waiting: deque[Measurement] = deque()
        self._process: Measuring | None = None
        self._thread: threading.Thread | None = None
        engines.watch(self._set_working)

    @property
    def is_measuring(self) -> bool:
        """Whether there is something to measure, or being measured."""
        return self._thread is not None

    def add(self, measurement: Measurement) -> None:
        with self._changed:
            self._waiting.append(measurement)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="idle-tuning", daemon=True)
                self._thread.start()

    def drop(self, measurement: Measurement) -> None:
        """Gives a measurement up that has not ended."""
        with self._changed:
            if self._process is not None and self._waiting[0] == measurement:
                self._process.kill()
            elif measurement in self._waiting:
                self._waiting.remove(measurement)

    def _set_working(self, num_working: int) -> None:
        with self._changed:
            self._num_working = num_working
            if num_working and self._process is not None:
                self._process.pause()
            self._changed.notify_all()

    def _run(self) -> None:
        """Measures all that waits. This thread starts the processes, as they end with it."""
        with self._changed:
            while self._waiting:
                self._changed.wait_for(lambda: self._num_working == 0)
                if self._changed.wait_for(lambda: self._num_working > 0, self._delay):
                    continue
                if self._process is not None:
                    self._process.resume()
                elif self._waiting and not self._begin(self._waiting[0]):
                    self._waiting.popleft()
                self._changed.wait_for(lambda: self._num_working > 0 or self._process is None)
            self._thread = None

    def _begin(self, measurement: Measurement) -> bool:
        """Returns whether a process could be started."""
        try:
            process = self._start(measurement)
        except OSError as error:
            logger.warning("cannot measure how the model runs fastest: %s", error)
            return False
        logger.info(
            "measuring, while nobody asks, how %s runs fastest here", measurement.model_dir.name
        )
        self._process = process
        thread = threading.Thread(target=self._end, args=(process,), daemon=True)
        thread.start()
        return True

    def _end(self, process: Measuring) -> None:
        """Waits for a process, in a thread of its own."""
        found = process.result()
        with self._changed:
            measurement = self._waiting.popleft()
            self._process = None
            logger.info("measured %s: %s", measurement.model_dir.name, found)
            self._changed.notify_all()
