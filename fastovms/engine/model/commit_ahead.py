"""Memory that is committed before it is first written.

The kernel commits memory when it is written to, and clears it then. For the KV cache of a prompt
that took up to a fifth of the prompt's time (in a virtual machine, 2 to 3 ms a MB).
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

_MADV_POPULATE_WRITE = 23
"""Since Linux 5.14. Leaves what is there as it is."""

_BYTES_AT_ONCE = 2 * 1024 * 1024
"""A huge page: some milliseconds."""

_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def commit(memory: NDArray[np.uint8]) -> bool:
    """Whether the kernel knows how to. The last page may be left out."""
    page = mmap.PAGESIZE
    start = memory.ctypes.data // page * page
    end = (memory.ctypes.data + memory.nbytes) // page * page
    # ctypes releases the GIL.
    return end <= start or _libc.madvise(start, end - start, _MADV_POPULATE_WRITE) == 0


class CommitAhead:
    """Commits the first rows of some arrays, and more as these come into use, bit by bit: whoever
    has nothing else to do calls `advance`."""

    def __init__(self, memories: Sequence[NDArray[np.uint8]], num_rows_ahead: int) -> None:
        """`memories` are [num_rows, bytes], all of equally many rows."""
        self._memories = memories
        self._num_rows = len(memories[0]) if memories else 0
        self._num_rows_ahead = min(num_rows_ahead, self._num_rows)
        self._num_committed = 0
        self._pieces: Iterator[NDArray[np.uint8]] = iter(())
        self._is_possible = True

    def advance(self, num_used: int) -> bool:
        """Commits a little, and says whether there was anything to commit.

        Args:
            num_used: rows that have been written to, the first ones of each array.
        """
        if not self._is_possible:
            return False
        piece = next(self._pieces, None)
        if piece is None:
            end = min(num_used + self._num_rows_ahead, self._num_rows)
            num_missing = end - self._num_committed
            if num_missing <= 0 or num_missing * 2 < self._num_rows_ahead:
                return False
            self._pieces = self._split(max(num_used, self._num_committed), end)
            self._num_committed = end
            return True
        self._is_possible = commit(piece)
        return True

    def _split(self, start: int, end: int) -> Iterator[NDArray[np.uint8]]:
        for memory in self._memories:
            num_rows = max(1, _BYTES_AT_ONCE // memory.shape[1])
            for first in range(start, end, num_rows):
                yield memory[first : min(first + num_rows, end)]
