"""Locks a file, so that one process at a time uses what it stands for."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def lock_file(path: Path) -> int:
    """Returns a descriptor that holds the lock as long as it is open; makes the file where there is
    none. Raises OSError."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            raise OSError("another process uses it") from None
        raise
    return lock
