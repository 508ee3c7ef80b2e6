"""Has the kernel commit memory before it is first written, in time that nobody waits for.

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
"""An advice to madvise(2) since Linux 5.14: commits pages and keeps what they hold."""

_BYTES_AT_ONCE = 2 * 1024 * 1024
"""How much is committed in one piece: a huge page, which takes some milliseconds."""

_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def commit(memory: NDArray[np.uint8]) -> bool:
    """Commits the pages of an array (the last one may be left out) and returns whether the kernel
    could."""
    page = mmap.PAGESIZE
    start = memory.ctypes.data // page * page
    end = (memory.ctypes.data + memory.nbytes) // page * page
    # ctypes releases the GIL.
    return end <= start or _libc.madvise(start, end - start, _MADV_POPULATE_WRITE) == 0


class CommitAhead:
    """Commits the first blocks of some arrays, and as many again as have come into use, piece by
    piece: whoever has nothing else to do calls `advance`."""

    def __init__(
        self, memories: Sequence[NDArray[np.uint8]], min_blocks_ahead: int, max_blocks_ahead: int
    ) -> None:
        """
        Args:
            memories: arrays [num_blocks, bytes], all of equally many blocks.
            min_blocks_ahead, max_blocks_ahead: how many blocks beyond those in use are to be
                committed while few are in use, and when many are.
        """
        self._memories = memories
        self._num_blocks = len(memories[0]) if memories else 0
        self._min_blocks_ahead = min(min_blocks_ahead, self._num_blocks)
        self._max_blocks_ahead = min(max_blocks_ahead, self._num_blocks)
        self._num_committed = 0
        self._pieces: Iterator[NDArray[np.uint8]] = iter(())
        self._is_possible = True

    def advance(self, num_used: int) -> bool:
        """Commits a piece, and returns whether there was anything to commit.

        Args:
            num_used: how many blocks of each array have been written to; these are the first ones.
        """
        if not self._is_possible:
            return False
        piece = next(self._pieces, None)
        if piece is None:
            num_ahead = min(max(num_used, self._min_blocks_ahead), self._max_blocks_ahead)
            end = min(num_used + num_ahead, self._num_blocks)
            num_missing = end - self._num_committed
            if num_missing <= 0 or num_missing * 2 < num_ahead:
                return False
            self._pieces = self._split(max(num_used, self._num_committed), end)
            self._num_committed = end
            return True
        self._is_possible = commit(piece)
        return True

    def _split(self, start: int, end: int) -> Iterator[NDArray[np.uint8]]:
        for memory in self._memories:
            num_blocks = max(1, _BYTES_AT_ONCE // memory.shape[1])
            for first in range(start, end, num_blocks):
                yield memory[first : min(first + num_blocks, end)]
