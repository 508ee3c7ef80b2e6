"""Shares out how many lines may run at the same time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from fastovms.fair_queue import FairQueue, Shares

_MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of all lines that run, unless one alone has more."""


class _Waiting(NamedTuple):
    size: int
    turn: asyncio.Future[None]


class LineSlots:
    """Lets lines run: owners take turns, and so do the batches of one owner, line by line.

    One owner may have all slots and bytes. An owner that has none gets some beyond the limit (see
    `Shares`). The limit may change at any time. It is checked when a line asks and when one ends.
    One line may always run, so that the next check is never far.

    Args:
        limit: returns how many lines may run now.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._lines = Shares.of_places(0)
        self._bytes = Shares(_MAX_BYTES, 2 * _MAX_BYTES)
        self._waiting: FairQueue[_Waiting] = FairQueue(
            "lines", per_client=sys.maxsize, total=sys.maxsize
        )

    @property
    def num_used(self) -> int:
        return self._lines.used

    async def acquire(self, size: int, owner: str = "") -> None:
        """Returns when a line of `size` bytes may run. `release` ends that."""
        waiting = _Waiting(size, asyncio.get_running_loop().create_future())
        self._waiting.add(owner, waiting)
        self._wake()
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if waiting.turn.done() and not waiting.turn.cancelled():
                self.release(size, owner)
            else:
                self._waiting.discard(owner, waiting)
                self._wake()
            raise

    def release(self, size: int, owner: str = "") -> None:
        self._lines.give_back(owner)
        self._bytes.give_back(owner, size)
        self._wake()

    def _wake(self) -> None:
        while (waiting := self._waiting.take(self._take)) is not None:
            waiting.turn.set_result(None)

    def _take(self, owner: str, waiting: _Waiting) -> bool:
        """Takes the slot of a line, if it may run now."""
        if waiting.turn.cancelled():  # its task discards it soon
            return False
        limit, size = self._limit(), waiting.size
        self._lines.free, self._lines.most = limit, 2 * limit + 1
        has_room = self._lines.may_take(owner) and self._bytes.may_take(owner, size)
        if self._lines.used and not has_room:
            return False
        self._lines.hold(owner)
        self._bytes.hold(owner, size)
        return True
