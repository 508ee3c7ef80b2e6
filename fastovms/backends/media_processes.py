"""Pools of processes that decode media. A crash then loses only one file, and memory returns to the
operating system."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar

from fastovms.backends.processes import ChildProcess
from fastovms.errors import BackendUnavailable, FastovmsError, InvalidField

MAX_PROCESSES: Final = 2
TIMEOUT: Final = 60.0
"""Seconds that one answer of a process may take."""
_CLOSE_TIMEOUT: Final = 2.0
"""Seconds in which the user of a process must notice that it has been killed."""

Result = TypeVar("Result")


class Refused(NamedTuple):
    """Reports that the file is invalid."""

    message: str


class MediaProcesses:
    """A pool of processes that decode one file each at a time. Thread-safe: a caller waits while
    all processes are busy.

    Args:
        what: a file of this kind, for messages, such as "image".
        start: starts a process. The first is started at once, the others when they are needed.
        timeout: seconds to wait for an answer of a process.
    """

    def __init__(
        self,
        what: str,
        start: Callable[[], ChildProcess],
        *,
        max_processes: int = MAX_PROCESSES,
        timeout: float = TIMEOUT,
    ) -> None:
        self._what = what
        self._start = start
        self._timeout = timeout
        self._max_processes = max_processes
        self._lock = Lock()
        self._peers: set[ChildProcess] = set()
        self._is_closed = False
        self._idle: SimpleQueue[ChildProcess | None] = SimpleQueue()
        for _ in range(max_processes - 1):
            self._idle.put(None)
        self._idle.put(self._begin())

    def run(self, name: str, ask: Callable[[ChildProcess], Result]) -> Result:
        """Calls `ask` with an idle process and returns its result. Raises InvalidField if the file
        is invalid, crashes the process or takes too long; Overloaded if there is not enough memory;
        BackendUnavailable if no process can be started, or the pool is closed. `name` is the
        request's field with the file."""
        try:
            with self._process() as peer:
                return ask(peer)
        except TimeoutError as error:
            raise InvalidField(
                f"{name} could not be decoded within {self._timeout:g} seconds", param=name
            ) from error
        except (EOFError, ConnectionError) as error:
            self._check_open()
            raise InvalidField(
                f"{name} could not be decoded: it takes too much time or memory, or is damaged",
                param=name,
            ) from error
        except OSError as error:
            raise BackendUnavailable(
                f"no {self._what} can be decoded now: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        """Kills the processes, in a few seconds at most. Files that are being decoded then fail
        and later calls are refused."""
        with self._lock:
            self._is_closed = True
            peers = list(self._peers)
        for peer in peers:
            peer.kill()
        idle = []
        with suppress(Empty):  # whoever still holds a process finds it ended
            for _ in range(self._max_processes):
                idle.append(self._idle.get(timeout=_CLOSE_TIMEOUT))
        for one in idle:
            if one is not None:
                self._end(one)
            self._idle.put(None)  # whoever waits is refused

    @contextmanager
    def _process(self) -> Iterator[ChildProcess]:
        """Yields an idle process. After an unexpected error the process is ended, because its next
        answers could not be trusted."""
        peer = self._idle.get()
        try:
            peer = peer or self._begin()
            yield peer
        except FastovmsError:
            raise
        except BaseException:
            if peer is not None:
                self._end(peer)
                peer = None
            raise
        finally:
            self._idle.put(peer)

    def _begin(self) -> ChildProcess:
        with self._lock:
            self._check_open()
            peer = self._start()
            self._peers.add(peer)
        return peer

    def _end(self, peer: ChildProcess) -> None:
        peer.kill()
        peer.connection.close()
        peer.wait()
        with self._lock:
            self._peers.discard(peer)

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendUnavailable(
                f"no {self._what} is decoded any more: the server is shutting down"
            )

    def answer(self, peer: ChildProcess, name: str) -> Any:
        """Returns the next answer of a process. Raises InvalidField if the answer is `Refused`;
        TimeoutError if there is none in time."""
        if not peer.connection.poll(self._timeout):
            raise TimeoutError
        answer = peer.connection.recv()
        if isinstance(answer, Refused):
            raise InvalidField(answer.message, param=name)
        return answer
