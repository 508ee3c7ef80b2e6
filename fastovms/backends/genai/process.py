"""Child processes, and what is said to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final, Protocol

_END_TIMEOUT: Final = 5.0
"""Seconds for a process to end once nobody talks to it any more, before it is killed."""


class Peer(Protocol):
    """The other end of a connection."""

    @property
    def connection(self) -> Connection[Any, Any]: ...

    def wait(self) -> str:
        """Returns how it has ended, once its end of the connection is closed."""

    def kill(self) -> None: ...


class ChildProcess:
    """A Python module run as a process, which gets the other end of `connection` by the number of
    a file descriptor in its first argument.

    It ends when the connection does, and no signal that is meant for the server concerns it.
    """

    def __init__(self, module: str) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
            )

    def wait(self) -> str:
        try:
            code = self._process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code >= 0:
            return f"its process has ended with code {code}"
        return f"its process was ended by {signal.Signals(-code).name}"

    def kill(self) -> None:
        self._process.kill()


def connect_to_parent(argv: list[str]) -> Connection[Any, Any]:
    """For the child: its end of the connection."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    descriptor = int(argv[1])
    os.set_inheritable(descriptor, False)
    return Connection(descriptor)
