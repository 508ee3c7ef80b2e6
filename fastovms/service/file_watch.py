"""Notices that a file has changed, by looking at it at intervals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

Stamp = tuple[int, int, int] | None


class FileWatch:
    """Looks at a file's time, size and inode, which costs microseconds.

    Args:
        interval: seconds between two looks; 0 = none is taken.
        on_change: called on the loop after a change, not while the file is missing.
    """

    def __init__(self, path: Path, interval: float, on_change: Callable[[], None]) -> None:
        self._path = path
        self._interval = interval
        self._on_change = on_change
        self._stamp = self._look()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._interval:
            self._timer = loop.call_later(self._interval, self._check, loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self.start(loop)
        stamp = self._look()
        if stamp is not None and stamp != self._stamp:
            self._stamp = stamp
            self._on_change()

    def _look(self) -> Stamp:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
