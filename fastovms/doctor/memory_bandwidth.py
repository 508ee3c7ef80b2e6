"""Measures how fast this process can read memory, which bounds how fast one sequence decodes."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.sampling.jit import kernel

_MIN_SIZE: Final = 256 * 1024 * 1024
_CACHES: Final = 4
"""How many times larger than the last cache the memory must be that is read."""


@kernel("uint64(uint64[::1])")
def _sum(values: Any) -> Any:
    """Reads everything once, as nothing but a sum does: OpenVINO reads weights so, too."""
    total = np.uint64(0)
    for i in range(values.size):
        total += values[i]
    return total


def measure_bandwidth(
    num_threads: int, last_level_cache: int, available: int, *, max_seconds: float = 1.5
) -> float:
    """Returns the bytes a second that the threads read together, the median of all passes.

    Args:
        last_level_cache, available: sizes in bytes; no more than a quarter of what is available is
            taken.
    """
    size = min(max(_MIN_SIZE, _CACHES * last_level_cache), available // 4)
    length = max(1, size // 8 // num_threads)
    parts: list[NDArray[np.uint64]] = [np.ones(length, np.uint64) for _ in range(num_threads)]
    rates: list[float] = []
    with ThreadPoolExecutor(num_threads) as threads:
        list(threads.map(_sum, parts))  # the first pass makes the pages and the threads
        end = time.perf_counter() + max_seconds
        while not rates or time.perf_counter() < end:
            start = time.perf_counter()
            list(threads.map(_sum, parts))
            rates.append(8 * length * num_threads / (time.perf_counter() - start))
    return statistics.median(rates)
