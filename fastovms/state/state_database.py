"""Declares `StateDatabase`, what a thread of the store asks of the database it uses, and the bounds
within which a database keeps itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from fastovms.state.operations import Operations
from fastovms.state.tables import OldObject, Totals

Operation = Callable[[Operations], object]


class OperationOutcome(NamedTuple):
    """What an operation returned, or why it changed nothing."""

    result: object = None
    error: Exception | None = None


class StateBounds(NamedTuple):
    """What may be kept: seconds since the last use, objects, bytes."""

    max_age: float
    max_count: int
    max_bytes: int

    def is_exceeded(self, totals: Totals, oldest_use: float | None, now: float) -> bool:
        """Returns whether objects are too many, too large together or too old."""
        seconds = self.seconds_to_expiry(oldest_use, now)
        return self._is_too_much(totals) or (seconds is not None and seconds <= 0.0)

    def seconds_to_expiry(self, oldest_use: float | None, now: float) -> float | None:
        """Returns the seconds until the next object is too old; None = there is none."""
        return None if oldest_use is None else max(0.0, oldest_use + self.max_age - now)

    def evictable(self, totals: Totals, oldest: Iterable[OldObject], now: float) -> dict[int, int]:
        """Returns which of the objects must go, as the size of each by its key. They are given in
        the order of their last use, the oldest first."""
        sizes: dict[int, int] = {}
        for key, size, used_at in oldest:
            if not self._is_too_much(totals) and used_at > now - self.max_age:
                break
            sizes[key] = size
            totals = totals.plus(-1, -size)
        return sizes

    def _is_too_much(self, totals: Totals) -> bool:
        return totals.num_objects > self.max_count or totals.num_bytes > self.max_bytes


class StateDatabase(Protocol):
    """A state that one thread uses."""

    @property
    def is_on_disk(self) -> bool:
        """Whether what is kept outlives the process."""

    @property
    def totals(self) -> Totals:
        """What is kept, as far as it is known. Any thread may ask."""

    @property
    def trouble(self) -> str:
        """Why the state is not where it belongs, or cannot be had; "" = it is. Any thread may
        ask."""

    def transact(self, operations: Sequence[Operation]) -> list[OperationOutcome]:
        """Runs operations, and raises nothing. One that raises leaves the others alone."""

    def keep_house(self) -> float:
        """Does what is due though nobody has asked for it, such as an eviction. Returns the seconds
        after which to do so again.

        Raises:
            StateFailed: it could not be done.
        """

    def close(self) -> None: ...
