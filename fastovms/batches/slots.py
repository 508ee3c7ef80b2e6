"""Shares out how many lines may run at the same time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of all lines that run, unless one alone has more."""


class LineSlots:
    """Lets lines run, in the order in which they ask: batches have their turns, line by line.

    The limit may change at any time. It is looked at when a line asks and when one ends; as one may
    always run, the next look is never far.

    Args:
        limit: returns how many may run now.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._num_bytes = 0
        self.num_used = 0

    async def acquire(self, size: int) -> None:
        """Returns when a line of so many bytes may run. `release` ends that."""
        if not self._waiting and self._has_room(size):
            self._take(size)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(size)
            else:
                with suppress(ValueError):  # a wake may have passed it over already
                    self._waiting.remove((size, turn))
                self._wake()
            raise

    def release(self, size: int) -> None:
        self.num_used -= 1
        self._num_bytes -= size
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._take(size)
                turn.set_result(None)

    def _has_room(self, size: int) -> bool:
        if not self.num_used:
            return True
        return self.num_used < self._limit() and self._num_bytes + size <= _MAX_BYTES

    def _take(self, size: int) -> None:
        self.num_used += 1
        self._num_bytes += size
