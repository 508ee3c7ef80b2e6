"""Child processes, which may crash: starting, limiting, calling and ending them.

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
from fastovms.system.deferred import leave_out_converter

_BUSY_FACTOR: Final = 10
"""The ratio of the limit of wall time to that of CPU time, since the machine may be busy."""

NICENESS: Final = 5
"""The nice value of processes that work for one request: on a busy machine, streams have
priority."""

_PR_SET_DUMPABLE: Final = 4


def set_soft_limit(limit: int, value: int) -> None:
    """Sets the soft limit of one of the `resource.RLIMIT_*` for this process, at most to the hard
    limit, which only root may raise."""
    _, hard = resource.getrlimit(limit)
    soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (soft, hard))


def limit_time(seconds: float) -> None:
    """Limits the run time of this process: SIGPROF ends it after this number of further CPU
    seconds, or SIGALRM after ten times as many seconds of wall time. 0 removes both limits."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * _BUSY_FACTOR)


def limit_growth(num_bytes: int) -> None:
    """Limits the address space of this process to its current size plus this many bytes. Disables
    core dumps, because the process is expected to be killed at the limit."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    set_soft_limit(resource.RLIMIT_AS, size + num_bytes)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def discard_stderr() -> None:
    """Discards this process's output to stderr, which may contain a client's text."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def max_resident() -> int:
    """Returns the peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


TRIAL_STACK: Final = 2 * 2**20
"""The stack size in bytes for grammar trials: a JSON schema of the maximum depth needs a tenth of
it."""

_END_TIMEOUT: Final = 5.0
"""Seconds after the closing of its connection until a process is killed."""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A process's last message, with the reason why it fails."""

    reason: str


@dataclass(frozen=True, slots=True)
class InputRefused:
    """A model's answer to request values that it cannot compute.

    Attributes:
        reason: the message for the client.
        param: the field of the request at fault; None = not a single field.
    """

    reason: str
    param: str | None = None


class ChildProcess:
    """A module running as a process, at the other end of `connection`. It ends when the connection
    closes, does not receive the server's signals, and is killed together with its children.

    Args:
        arguments: the arguments of the module's function `serve`.
        dies_with_thread: whether the process is killed, even if it is stopped, when the thread that
            started it ends.

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
        """The process id."""
        return self._process.pid

    def ask(self, message: object, what: str) -> Any:
        """Sends a message and returns the answer. If the process ends instead, returns a
        `WorkerFailed` whose reason names `what`."""
        try:
            send(self.connection, message)
            return receive(self.connection)
        except (EOFError, ConnectionError):
            return WorkerFailed(f"{what} {self.close()}")

    def wait(self) -> str:
        """Waits until the process ends, and returns how it ended, such as "was ended by
        SIGKILL"."""
        try:
            code = self._process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        return exit_description(code)

    def close(self) -> str:
        """Closes the connection, which ends the process, and returns how it ended."""
        self.connection.close()
        return self.wait()

    def kill(self) -> None:
        """Kills the process with SIGKILL."""
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
    """Sends a message for `receive`. Arrays in it are sent without a copy, which would hold the
    GIL."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    connection.send_bytes(pickle.dumps((len(buffers), head)))
    for buffer in buffers:
        connection.send_bytes(buffer.raw())


def receive(connection: Connection[Any, Any]) -> Any:
    """Returns the next object written by `send`; blocks. Raises EOFError at the end of the
    connection."""
    num_buffers, head = pickle.loads(connection.recv_bytes())
    return pickle.loads(head, buffers=[connection.recv_bytes() for _ in range(num_buffers)])


_CLOSE_TIMEOUT: Final = 2.0
"""Seconds for which `ProcessPool.close` waits for callers to notice that their process was
killed."""


class ProcessPool:
    """A pool of processes, each used by one caller at a time. Thread-safe: a caller waits while all
    are in use. A crash affects only the crashed process's caller.

    Args:
        task: what the processes do, as (noun, participle) for messages, such as ("image",
            "decoded").
        start: starts a process.
        is_ready: whether to start the first process at once. Others are started when needed.
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
        """Yields an idle process. After an error that is not this package's, the process is ended,
        because its next answers could not be trusted. Raises BackendUnavailable if no process can
        be started or the pool is closed, and EOFError, ConnectionError or TimeoutError of the
        use."""
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
        """Kills the processes, within a few seconds. Running calls fail, and later calls are
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
    """Runs a module as a process, which ends when its function `serve` returns or its connection
    closes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leave_out_converter()
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
