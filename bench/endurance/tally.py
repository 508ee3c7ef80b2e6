"""Counts the outcomes of an attack and records every failure."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

_MAX_SHOWN = 20
"""The greatest number of failures that are printed and written to files."""

_WARM_UP = 0.1
"""The share of the count after which memory is measured, because caches and pools are full by then.
"""


@dataclass(slots=True)
class Tally:
    """Counts the outcomes of an attack.

    Attributes:
        seed: determines the messages together with the index, which each failure names.
        num_sent: messages or bodies that were sent.
        statuses: the number of responses by status.
        num_failures: wrong or missing responses.
        slowest: the longest latency in seconds.
    """

    seed: int
    num_sent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    num_failures: int = 0
    slowest: float = 0.0
    _directory: Path | None = None

    def fail(self, index: int, reason: str, sent: bytes) -> None:
        """Counts and prints a failure, and writes the message into a file."""
        self.num_failures += 1
        if self.num_failures > _MAX_SHOWN:
            return
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="fastovms-endurance-failures-"))
        path = self._directory / f"{self.seed}-{index}"
        path.write_bytes(sent)
        print(f"failure: seed {self.seed}, index {index}: {reason}; {path}", flush=True)

    def print_statuses(self) -> None:
        counts = (f"{status}: {count}" for status, count in sorted(self.statuses.items()))
        print(f"answers by status: {', '.join(counts)}")


@dataclass(slots=True)
class Budget:
    """Returns indices until the count or the time is used up."""

    first: int
    count: int
    seconds: float
    tally: Tally
    _next: int = 0
    _end: float = 0.0

    def __post_init__(self) -> None:
        self._next = self.first
        self._end = time.monotonic() + self.seconds

    @property
    def is_spent(self) -> bool:
        return self.tally.num_sent >= self.count or time.monotonic() >= self._end

    def take(self) -> int:
        """Returns the next index."""
        self._next += 1
        return self._next - 1


async def work_through(budget: Budget, do: Callable[[int], Awaitable[None]]) -> None:
    """Processes one index after another until the budget is used up."""
    while not budget.is_spent:
        await do(budget.take())


async def spend(
    budget: Budget, work: Callable[[Budget], Awaitable[None]], num_clients: int
) -> None:
    """Runs the given number of concurrent clients until the budget is used up."""
    await asyncio.gather(*(work(budget) for _ in range(num_clients)))


async def spend_after_warm_up(
    budget: Budget,
    work: Callable[[Budget], Awaitable[None]],
    num_clients: int,
    on_warm: Callable[[], None],
) -> float:
    """Uses up the budget, and calls `on_warm` when a tenth of the count is done and no client waits
    for a response. Returns the duration in seconds."""
    start = time.monotonic()
    warm_up = Budget(budget.first, int(budget.count * _WARM_UP), budget.seconds, budget.tally)
    await spend(warm_up, work, num_clients)
    on_warm()
    rest = budget.seconds - (time.monotonic() - start)
    await spend(Budget(warm_up.take(), budget.count, rest, budget.tally), work, num_clients)
    return time.monotonic() - start
