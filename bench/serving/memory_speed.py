"""How fast the machine's memory is at this moment: it bounds a step of few sequences, and changes
from hour to hour where neighbours use it too."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

_BYTES_PER_CORE = 64 * 1024 * 1024
"""More than a core's share of any cache."""

_NUM_PASSES = 4


class MemorySpeed:
    """Reads memory with all cores at once, some 50 ms long."""

    def __init__(self) -> None:
        num_cores = len(os.sched_getaffinity(0))
        self._arrays = [np.ones(_BYTES_PER_CORE // 8, np.int64) for _ in range(num_cores)]
        self._threads = ThreadPoolExecutor(num_cores)

    def measure(self) -> float:
        """Returns gigabytes read a second, the best of a few passes."""
        return max(self._pass() for _ in range(_NUM_PASSES))

    def _pass(self) -> float:
        start = time.perf_counter()
        list(self._threads.map(_read, self._arrays))
        seconds = time.perf_counter() - start
        return len(self._arrays) * _BYTES_PER_CORE / seconds / 1e9


def _read(array: NDArray[np.int64]) -> int:
    """The GIL is free meanwhile."""
    return int(array.max())
