"""Locks a file, so that one process at a time uses what it stands for."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def lock_file(path: Path) -> int:
    """Returns a descriptor that holds the lock as long as it is open; any end of the process closes
    it. Makes the file where there is none.

    Raises:
        BlockingIOError: another process has the lock.
        OSError: the file cannot be had.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise BlockingIOError(error.errno, "another process uses it") from None
    except BaseException:
        os.close(lock)
        raise
    return lock
