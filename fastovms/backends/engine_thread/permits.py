"""Bounds how many steps of an engine may wait for the event loop, by a semaphore for threads."""

from __future__ import annotations

import queue


class Permits:
    """A semaphore for threads. `threading`'s is written in Python, which is too slow here: a step
    of the engine takes one permit, and the event loop gives it back between two tokens, with
    neither's code in a processor's cache."""

    def __init__(self, num: int) -> None:
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(num):
            self._free.put(None)

    def acquire(self) -> None:
        """Waits until there is a permit, and takes it."""
        self._free.get()

    def release(self) -> None:
        self._free.put(None)
