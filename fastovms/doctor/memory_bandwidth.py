"""Measures how fast this process can read memory, which bounds how fast one sequence decodes."""

from __future__ import annotations

import statistics
import time
from typing import Final

from fastovms.engine.model.machine.memory_speed import MemoryReader

_MIN_SIZE: Final = 256 * 1024 * 1024
_CACHES: Final = 4
"""How many times larger than the last cache the memory must be that is read."""


def measure_bandwidth(
    num_threads: int, last_level_cache: int, available: int, *, max_seconds: float = 1.5
) -> float:
    """Returns the bytes a second that the threads read together, the median of all passes.

    Args:
        last_level_cache, available: sizes in bytes; no more than a quarter of what is available is
            taken.
    """
    size = min(max(_MIN_SIZE, _CACHES * last_level_cache), available // 4)
    with MemoryReader(size, num_threads) as read:
        read()  # the first pass makes the threads
        end = time.perf_counter() + max_seconds
        rates = [read()]
        while time.perf_counter() < end:
            rates.append(read())
    return statistics.median(rates)
