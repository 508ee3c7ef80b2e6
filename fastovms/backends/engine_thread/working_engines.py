"""Counts the engines of a server that have something to do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class WorkingEngines:
    """Tells all who watch how many engines work, as often as that changes. It is thread-safe."""

    def __init__(self) -> None:
        self._num_working = 0
        self._watchers: list[Callable[[int], None]] = []
        self._lock = threading.Lock()

    def watch(self, watcher: Callable[[int], None]) -> None:
        """Calls `watcher` with the number, now and after each change, on the thread that made the
        change. It must not change the number itself."""
        with self._lock:
            self._watchers.append(watcher)
            watcher(self._num_working)

    def begin(self) -> None:
        """Takes note that an engine has something to do, until `end`."""
        self._add(1)

    def end(self) -> None:
        """Takes note that an engine has nothing to do any more."""
        self._add(-1)

    @contextmanager
    def rest(self) -> Iterator[None]:
        """Lets an engine that works rest for as long as the context lasts."""
        self.end()
        try:
            yield
        finally:
            self.begin()

    def _add(self, difference: int) -> None:
        with self._lock:  # held while they are told, so that the last to be told is the newest
            self._num_working += difference
            for watcher in self._watchers:
                watcher(self._num_working)
