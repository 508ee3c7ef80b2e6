"""Replaces itself with a server that gets a listening socket as systemd passes it.

    python -m bench.endurance.load.activated FD FLAG...

Another process opens the socket at the descriptor FD and keeps it open, as systemd does, so that it
outlives the server. If systemd-socket-activate is installed, it starts the server.
"""

from __future__ import annotations

import os
import shutil
import sys

from bench.endurance.server import SERVE

_FIRST_FD = 3
ACTIVATOR = "systemd-socket-activate"


def main() -> None:
    fd, *flags = sys.argv[1:]
    os.dup2(int(fd), _FIRST_FD)  # the copy is inheritable
    command = [sys.executable, *SERVE, *flags]
    activator = shutil.which(ACTIVATOR)
    if activator is not None:
        command = [activator, *command]
    environ = {**os.environ, "LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
    os.execve(command[0], command, environ)


if __name__ == "__main__":
    main()
