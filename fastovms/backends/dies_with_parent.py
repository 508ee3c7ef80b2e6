"""Replaces this process by a command that is killed when its parent ends.

python -m fastovms.backends.dies_with_parent PARENT_PID COMMAND [ARGUMENT ...]

Ray kills an actor without a signal, and a terminal may close during a chat. Their child processes
must not survive and occupy processors and memory.
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
    ends. Raises SystemExit, without a message: a parent that has ended before this call, which is
    detected by its id. A command that ends while its processes still start prints no error."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(1)


def main(argv: list[str]) -> None:
    """Takes the process id of the parent and the command. The setting of prctl(2) survives
    execve."""
    die_with_parent(int(argv[1]))
    os.execvp(argv[2], argv[2:])


if __name__ == "__main__":
    main(sys.argv)
