"""Replaces this process by a command that is killed when its parent ends.

python -m fastovms.backends.dies_with_parent PARENT_PID COMMAND [ARGUMENT ...]

Ray kills an actor without a signal, and a terminal may close during a chat. Their child processes
must not survive and use CPU and memory.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent_pid: int) -> None:
    """Makes the kernel kill this process, even if it is stopped, when the thread that started it
    ends (prctl(2)). Raises SystemExit, without a message, if the parent has already ended; its id
    shows that."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(1)


def main(argv: list[str]) -> None:
    """Runs a command, given the parent's process id and the command. prctl's setting survives
    execve."""
    die_with_parent(int(argv[1]))
    os.execvp(argv[2], argv[2:])


if __name__ == "__main__":
    main(sys.argv)
