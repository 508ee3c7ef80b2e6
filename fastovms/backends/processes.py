"""Child processes, which may die: how they are started, limited, asked and ended.

`python -m fastovms.backends.processes DESCRIPTOR PARENT_PID MODULE [ARGUMENT ...]` calls the
function `serve` of the module with the connection to the parent and the arguments.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from fastovms.backends.dies_with_parent import die_with_parent
from fastovms.errors import BackendUnavailable, FastovmsError

_BUSY_FACTOR: Final = 10
"""The factor on a limit of CPU time that gives the limit of wall time, since the machine may be
busy."""

NICENESS: Final = 5
"""The nice value of processes that work for one request: on a busy machine, streams go first."""

_PR_SET_DUMPABLE: Final = 4


def set_soft_limit(limit: int, value: int) -> None:
    """Sets the soft limit of one of the `resource.RLIMIT_*` for this process, at most to the hard
    limit, which only root may raise."""
    _, hard = resource.getrlimit(limit)
    soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (soft, hard))


def limit_time(seconds: float) -> None:
    """Limits this process. SIGPROF ends it after this number of further CPU seconds, or SIGALRM
    after ten times as many seconds of wall time. 0 removes both limits."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * _BUSY_FACTOR)


def limit_growth(num_bytes: int) -> None:
    """Limits the address space that this process may have in addition to what it has now, and
    prevents core dumps, because the process is expected to be killed at the limit."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    set_soft_limit(resource.RLIMIT_AS, size + num_bytes)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def discard_stderr() -> None:
    """Discards what this process writes to stderr, which may be a client's text."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def max_resident() -> int:
    """Returns the most bytes of memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


TRIAL_STACK: Final = 2 * 2**20
"""Bytes of the stack in which grammars are tried: a JSON schema of the greatest depth needs a tenth
of it."""

_END_TIMEOUT: Final = 5.0
"""Seconds in which a process must end after its connection is closed, before it is killed."""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The last message of a process that fails."""

    reason: str


@dataclass(frozen=True, slots=True)
class InputRefused:
    """The answer of a model to values of a request that it cannot compute.

    Attributes:
        reason: the message for the client.
        param: the field of the request at fault; None = not a single one.
    """

    reason: str
    param: str | None = None


class ChildProcess:
    """A module run as a process, with the other end of `connection`. The process ends when the
    connection closes, does not receive the server's signals, and is killed together with its
    children.

    Args:
        arguments: the arguments of the module's function `serve`.
        dies_with_thread: whether it is killed, even if it is stopped, when the thread that starts
            it ends.

    Attributes:
        is_last: whether a `ProcessPool` ends it after its current use.
    """

    def __init__(self, module: str, *arguments: str, dies_with_thread: bool = False) -> None:
        self.is_last = False
        self.connection, theirs = Pipe()
        parent = str(os.getpid() if dies_with_thread else 0)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), parent, module, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                process_group=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, message: object, what: str) -> Any:
        """Sends a message and returns the answer. If the process ends instead, this is a
        `WorkerFailed` that says so of `what`."""
        try:
            send(self.connection, message)
            return receive(self.connection)
        except (EOFError, ConnectionError):
            return WorkerFailed(f"{what} {self.close()}")

    def wait(self) -> str:
        """Returns how the process ended, such as "was ended by SIGKILL", once its end of the
        connection is closed."""
        try:
            code = self._process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        return exit_description(code)

    def close(self) -> str:
        """Ends the process with its connection, and returns how it ended."""
        self.connection.close()
        return self.wait()

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Kills the process, and waits until it has ended."""
        self.kill()
        self.close()

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and its children, if it has not ended."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def exit_description(code: int) -> str:
    """Describes how a process with this exit code ended. Negative codes are signals (see
    `subprocess.Popen.returncode`)."""
    if code >= 0:
        return f"has ended with code {code}"
    return f"was ended by {signal.Signals(-code).name}"


def send(connection: Connection[Any, Any], message: object) -> None:
    """Sends a message for `receive`. Arrays in it are not copied because copying would hold the
    GIL."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    connection.send_bytes(pickle.dumps((len(buffers), head)))
    for buffer in buffers:
        connection.send_bytes(buffer.raw())


def receive(connection: Connection[Any, Any]) -> Any:
    """Reads the next object from a process, as `send` has written it; blocks. Raises EOFError at
    the end of the connection."""
    num_buffers, head = pickle.loads(connection.recv_bytes())
    return pickle.loads(head, buffers=[connection.recv_bytes() for _ in range(num_buffers)])


_CLOSE_TIMEOUT: Final = 2.0
"""Seconds within which the code that uses a process must notice that the process was killed."""


class ProcessPool:
    """Processes of one kind, each used by one caller at a time. Thread-safe: a caller waits while
    all are in use. A crash costs only what its process was asked for.

    Args:
        task: what they do, for messages, such as ("image", "decoded").
        start: starts a process.
        is_ready: whether the first is started at once. The others are when they are needed.
    """

    def __init__(
        self,
        task: tuple[str, str],
        start: Callable[[], ChildProcess],
        *,
        max_processes: int = 1,
        is_ready: bool = False,
    ) -> None:
        self._what, self._done = task
        self._start = start
        self._max_processes = max_processes
        self._lock = threading.Lock()
        self._peers: set[ChildProcess] = set()
        self._is_closed = False
        self._idle: SimpleQueue[ChildProcess | None] = SimpleQueue()
        for _ in range(max_processes - is_ready):
            self._idle.put(None)
        if is_ready:
            self._idle.put(self._begin())

    @contextmanager
    def process(self) -> Iterator[ChildProcess]:
        """Yields an idle process. After an error that is not of this package it is ended, because
        its next answers could not be trusted. Raises BackendUnavailable if no process can be
        started, or the pool is closed; EOFError, ConnectionError or TimeoutError as the use of the
        process does."""
        peer = self._idle.get()
        try:
            peer = peer or self._begin()
            yield peer
        except FastovmsError:
            raise
        except BaseException as error:
            if peer is not None:
                self._end(peer)
                peer = None
            if isinstance(error, EOFError | ConnectionError):
                self._check_open()
            elif isinstance(error, OSError) and not isinstance(error, TimeoutError):
                reason = error.strerror or error
                raise BackendUnavailable(
                    f"no {self._what} can be {self._done} now: {reason}"
                ) from error
            raise
        finally:
            if peer is not None and peer.is_last:
                self._end(peer)
                peer = None
            self._idle.put(peer)

    def close(self) -> None:
        """Kills the processes, in a few seconds at most. Running calls fail, and later calls are
        refused."""
        with self._lock:
            self._is_closed = True
            peers = list(self._peers)
        for peer in peers:
            peer.kill()
        idle = []
        with suppress(Empty):  # processes in use were killed above; their users close them
            for _ in range(self._max_processes):
                idle.append(self._idle.get(timeout=_CLOSE_TIMEOUT))
        for one in idle:
            if one is not None:
                self._end(one)
            self._idle.put(None)  # None refuses a waiting call

    def _begin(self) -> ChildProcess:
        with self._lock:
            self._check_open()
            peer = self._start()
            self._peers.add(peer)
        return peer

    def _end(self, peer: ChildProcess) -> None:
        peer.end()
        with self._lock:
            self._peers.discard(peer)

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendUnavailable(
                f"no {self._what} is {self._done} any more: the server is shutting down"
            )


def main(argv: list[str]) -> None:
    """Runs a module as a process, which ends with its function `serve` or its connection."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _, descriptor, parent_pid, module, *arguments = argv
    if int(parent_pid):
        die_with_parent(int(parent_pid))
    os.set_inheritable(int(descriptor), False)
    connection: Connection[Any, Any] = Connection(int(descriptor))
    with suppress(EOFError, ConnectionError):  # the parent has closed it, or has ended
        import_module(module).serve(connection, *arguments)
    connection.close()
    sys.stderr.flush()
    os._exit(0)  # an orderly exit makes OpenVINO GenAI report requests that still run


if __name__ == "__main__":
    main(sys.argv)
