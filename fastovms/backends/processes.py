"""Child processes: started with limits, ended with their parent."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final

_BUSY_FACTOR: Final = 10
"""How many times as long as its CPU time something may take where the machine is busy."""

_NICENESS: Final = 5
"""Of processes that decode media: streams that are being generated go first on a busy machine."""


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


TRIAL_STACK: Final = 2 * 2**20
"""Bytes of the stack in which grammars are tried: a JSON schema of the greatest depth needs a tenth
of it."""

_END_TIMEOUT: Final = 5.0
"""Seconds in which a process must end after its connection is closed, before it is killed."""


class ChildProcess:
    """A Python module run as a process. Its first argument is the file descriptor of the other end
    of `connection`. The process ends when the connection closes, does not receive the server's
    signals, and is killed together with its children. `arguments` are the further arguments of the
    module."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                process_group=0,
            )

    def wait(self) -> str:
        """Returns how the process ended, such as "was ended by SIGKILL", once its end of the
        connection is closed."""
        try:
            code = self._process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        return fate(code)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and its children, if it has not ended."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def fate(code: int) -> str:
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
    num_buffers, head = pickle.loads(connection.recv_bytes())
    return pickle.loads(head, buffers=[connection.recv_bytes() for _ in range(num_buffers)])


def connect_to_parent(argv: list[str]) -> Connection[Any, Any]:
    """Returns the child's end of the connection to its parent."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    descriptor = int(argv[1])
    os.set_inheritable(descriptor, False)
    return Connection(descriptor)


def run_media_process(
    serve: Callable[[Connection[Any, Any]], None], *, prepare: Callable[[], object], max_memory: int
) -> None:
    """Runs a process that decodes media, and ends it with its connection.

    Args:
        serve: answers files until the connection ends.
        prepare: imports the decoder, so that the first file does not wait for it.
        max_memory: bytes of address space.
    """
    connection = connect_to_parent(sys.argv)
    prepare()
    warnings.simplefilter("ignore")  # of decoders about a client's file
    set_soft_limit(resource.RLIMIT_AS, max_memory)
    os.nice(_NICENESS)
    serve(connection)
    os._exit(0)
