"""Measures how fast memory can be read at the moment, which neighbours on the machine change from
minute to minute."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

import numpy as np

from fastovms.system.cgroup import num_usable_cpus

_SIZE: Final = 128 * 1024 * 1024
"""Bytes that are read: more than caches hold, and done in milliseconds."""


class MemoryReader:
    """Reads memory of its own, with all processors, each time that it is called.

    As a context manager it ends its threads; else they end with it.
    """

    def __init__(self, size: int = _SIZE, num_threads: int | None = None) -> None:
        num_threads = num_threads or num_usable_cpus()
        self._parts = np.array_split(np.ones(max(num_threads, size // 8), np.uint64), num_threads)
        self._threads = ThreadPoolExecutor(num_threads, "memory-reader")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def __call__(self) -> float:
        """Returns the bytes a second that were read."""
        start = time.perf_counter()
        list(self._threads.map(np.sum, self._parts))
        return sum(part.nbytes for part in self._parts) / (time.perf_counter() - start)
