"""Declares `StateDatabase`, what a thread of the store asks of the database it uses, and the bounds
within which a database keeps itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nlargest
from typing import NamedTuple, Protocol

from fastovms.state.operations import Operations
from fastovms.state.tables import OldObject, Shares, Tables, Totals, add_growth, total_of

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
        is_too_much = totals.num_objects > self.max_count or totals.num_bytes > self.max_bytes
        return is_too_much or (seconds is not None and seconds <= 0.0)

    def seconds_to_expiry(self, oldest_use: float | None, now: float) -> float | None:
        """Returns the seconds until the next object is too old; None = there is none."""
        return None if oldest_use is None else max(0.0, oldest_use + self.max_age - now)


class Eviction:
    """Evicts up to `limit` objects within a transaction.

    Objects that are too old are evicted first. While there are too many, or they are too large, the
    tenant that has the most loses its least recently used objects, until it has as much as the next
    one. A tenant with no more than the bound divided by the number of tenants loses nothing, also
    where another tenant's share is in responses that run, which cannot be evicted.

    Args:
        shares: what each tenant has.
    """

    def __init__(self, tables: Tables, bounds: StateBounds, shares: Shares, limit: int) -> None:
        self._tables = tables
        self._bounds = bounds
        self._shares = dict(shares)
        self._limit = limit

    def run(self, now: float) -> bool:
        """Evicts what is due at a unix time. Returns whether it was anything."""
        bounds, limit = self._bounds, self._limit
        self._delete(self._tables.expired(now - bounds.max_age, limit))
        for measure, bound in enumerate((bounds.max_count, bounds.max_bytes)):
            self._shrink(measure, bound)
        return self._limit < limit

    def _shrink(self, measure: int, bound: int) -> None:
        """Evicts objects while all tenants together have more than `bound` of one of the two
        numbers of `Totals`."""
        passed_over: set[str] = set()
        excess = total_of(self._shares)[measure] - bound
        while excess > 0 and self._limit > 0:
            used = [
                (t[measure], name) for name, t in self._shares.items() if name not in passed_over
            ]
            [(most, tenant), (second, _)] = nlargest(2, [*used, (0, ""), (0, "")])
            share = bound / len(self._shares)
            if most <= share:
                return
            need = min(excess, most - max(second, share))
            evicted: list[OldObject] = []
            for old in self._tables.oldest_of(tenant, self._limit):
                if evicted and need <= 0:
                    break
                evicted.append(old)
                amount = (1, old.size)[measure]
                need -= amount
                excess -= amount
            if not evicted:
                passed_over.add(tenant)
            self._delete(evicted)

    def _delete(self, objects: Sequence[OldObject]) -> None:
        self._tables.delete_all(objects)
        self._limit -= len(objects)
        for _, tenant, size in objects:
            add_growth(self._shares, {tenant: Totals(-1, -size)})


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
