"""Base class of the state databases: transactions of several operations, limits, evictions."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from heapq import nlargest
from typing import ClassVar, Generic, NamedTuple, TypeVar

from fastovms.errors import StateFailed
from fastovms.state.operations import Operations
from fastovms.state.tables import (
    Clock,
    EvictionCandidate,
    Shares,
    Tables,
    Totals,
    add_growth,
    total_of,
)
from fastovms.system.clock import ExpiryRounds

logger = logging.getLogger(__name__)

Operation = Callable[[Operations], object]


class OperationOutcome(NamedTuple):
    """The result of an operation, or the error that rolled it back."""

    result: object = None
    error: Exception | None = None


class StateBounds(NamedTuple):
    """The limits of the stored objects: seconds since the last use, number, and total bytes."""

    max_age: float
    max_count: int
    max_bytes: int

    def is_exceeded(self, totals: Totals, oldest_use: float | None, now: float) -> bool:
        """Returns whether objects exceed the limits of number, total size or age."""
        seconds = self.seconds_to_expiry(oldest_use, now)
        is_too_much = totals.num_objects > self.max_count or totals.num_bytes > self.max_bytes
        return is_too_much or (seconds is not None and seconds <= 0.0)

    def seconds_to_expiry(self, oldest_use: float | None, now: float) -> float | None:
        """Returns the seconds until the next object expires; None = no objects."""
        return None if oldest_use is None else max(0.0, oldest_use + self.max_age - now)


class Eviction:
    """Evicts up to `limit` objects within a transaction.

    Expired objects are evicted first, as many as `rounds` allows. While the number or total size
    exceeds its limit, the tenant with the most loses its least recently used objects, until it has
    as much as the next tenant. A tenant with at most an equal share of the limit loses nothing,
    even if others have running responses, which cannot be evicted. `shares` is the number and size
    of each tenant's objects.
    """

    def __init__(
        self, tables: Tables, bounds: StateBounds, shares: Shares, limit: int, rounds: ExpiryRounds
    ) -> None:
        self._tables = tables
        self._rounds = rounds
        self._bounds = bounds
        self._shares = dict(shares)
        self._limit = limit

    def run(self, now: float) -> bool:
        """Evicts the objects that are due at a Unix time. Returns whether there were any."""
        bounds, limit = self._bounds, self._limit
        last_use, num_objects = now - bounds.max_age, total_of(self._shares).num_objects
        allowed = min(limit, self._rounds.allowed(num_objects, now, bounds.max_age))
        aged = self._tables.expired(last_use, allowed)
        self._delete(aged)
        self._rounds.spend(len(aged), is_behind=lambda: bool(self._tables.expired(last_use, 1)))
        for measure, bound in enumerate((bounds.max_count, bounds.max_bytes)):
            self._shrink(measure, bound)
        return self._limit < limit

    def _shrink(self, measure: int, bound: int) -> None:
        """Evicts objects while all tenants together exceed `bound`. `measure` is the index of the
        number in `Totals`: objects or bytes."""
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
            evicted: list[EvictionCandidate] = []
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

    def _delete(self, objects: Sequence[EvictionCandidate]) -> None:
        self._tables.delete_all(objects)
        self._limit -= len(objects)
        for _, tenant, size in objects:
            add_growth(self._shares, {tenant: Totals(-1, -size)})


class DatabaseUnavailable(StateFailed):
    """The database is not available."""


OwnTables = TypeVar("OwnTables", bound=Tables)


class SqlDatabase(ABC, Generic[OwnTables]):
    """Implements `StateDatabase` with SQL tables. Used by one thread.

    Objects are evicted when they expire, or exceed the limits of number or size (see `Eviction`).

    Args:
        clock: returns the Unix time in seconds.

    Attributes:
        driver_errors: the exception classes of the database driver.
        max_evicted: the maximum number of objects that one transaction evicts.
        min_wait, max_wait: the bounds of the seconds between two searches for expired objects.
        tables: the tables; None = not connected.
    """

    driver_errors: ClassVar[tuple[type[Exception], ...]]
    max_evicted: ClassVar[int]
    min_wait: ClassVar[float]
    max_wait: ClassVar[float]

    def __init__(self, bounds: StateBounds, clock: Clock, *, only_reads: bool = False) -> None:
        self._bounds = bounds
        self._clock = clock
        self._only_reads = only_reads
        self._rounds = ExpiryRounds("responses and conversations")
        self.tables: OwnTables | None = None

    @abstractmethod
    def transaction(self, *, only_reads: bool = False) -> AbstractContextManager[OwnTables]:
        """Opens a transaction: commits at the end of the context, or rolls back on an error. Raises
        an error of the driver if the commit fails."""

    @abstractmethod
    def _run(self, operation: Operation) -> OperationOutcome:
        """Runs an operation within a transaction, and returns its outcome. Raises errors that abort
        the whole transaction."""

    @abstractmethod
    def _failure(self, error: Exception) -> Exception:
        """Returns the error to report for an operation whose transaction was aborted by this
        error."""

    @abstractmethod
    def _count(self, tables: OwnTables) -> Totals: ...

    @abstractmethod
    def _shares_of(self, tables: OwnTables) -> Shares: ...

    def _reason(self, error: Exception) -> str:
        """Returns the reason to log for a driver's error."""
        return str(error)

    def _has_turn(self, tables: OwnTables) -> bool:
        """Returns whether this server may evict now: only one server evicts at a time."""
        return True

    def snapshot(self) -> AbstractContextManager[OwnTables]:
        """Opens a read-only transaction whose statements see one consistent snapshot."""
        return self.transaction(only_reads=True)

    def transact(self, operations: Sequence[Operation]) -> list[OperationOutcome]:
        """Runs operations in one transaction, and returns their outcomes; never raises. If the
        transaction fails, for example on a full disk, each operation is run in its own transaction,
        so that some may succeed."""
        try:
            return self._transact(operations)
        except Exception as error:
            if len(operations) > 1 and not isinstance(error, DatabaseUnavailable):
                return [self.transact([operation])[0] for operation in operations]
            return [OperationOutcome(error=self._failure(error)) for _ in operations]

    def _transact(self, operations: Sequence[Operation]) -> list[OperationOutcome]:
        with self.transaction(only_reads=self._only_reads):
            return [self._run(operation) for operation in operations]

    def do_maintenance(self) -> float:
        """Stores times of use, and evicts a few objects, if due. Returns the seconds until the next
        call is due. Raises StateFailed on failure."""
        try:
            self._write_uses()
            if self._only_reads:
                return self.max_wait
            if self.evict():
                return 0.0
            expiry = self.seconds_to_expiry()
        except self.driver_errors as error:
            reason = self._reason(error)
            raise StateFailed(f"old responses cannot be deleted: {reason}") from error
        return self.max_wait if expiry is None else min(max(expiry, self.min_wait), self.max_wait)

    def evict(self) -> bool:
        """Evicts a few objects if due and no other server does so. Returns whether more are due.
        Raises an error of the driver on failure."""
        if not self._is_due():
            return False
        with self.transaction() as tables:
            if not self._has_turn(tables):
                return False
            shares = self._shares_of(tables)
            eviction = Eviction(tables, self._bounds, shares, self.max_evicted, self._rounds)
            has_evicted = eviction.run(self._clock())
        return has_evicted and self._is_due()

    def seconds_to_expiry(self) -> float | None:
        """Returns the seconds until the next object expires; None = no objects."""
        with self.snapshot() as tables:
            now = self._clock()
            seconds = self._bounds.seconds_to_expiry(tables.oldest_use(), now)
        return None if seconds is None else max(seconds, self._rounds.seconds_left(now))

    def faults(self) -> Iterator[str]:
        """Yields a description of each inconsistency. Reads all rows. Raises an error of the driver
        if the database cannot be read."""
        with self.snapshot() as tables:
            yield from tables.faults(self._count(tables), self._shares_of(tables))

    def check(self) -> None:
        """Raises AssertionError if the stored data are inconsistent. Reads all rows."""
        assert list(self.faults()) == []

    def _write_uses(self) -> None:
        """Stores which objects were used. If that fails, later uses are still recorded in
        memory."""
        if self.tables is None or not self.tables.has_uses:
            return
        try:
            with self.transaction() as tables:
                tables.write_uses()
        except DatabaseUnavailable:
            raise
        except Exception:
            logger.debug(
                "response store: the last uses of stored objects are not recorded", exc_info=True
            )

    def _is_due(self) -> bool:
        with self.snapshot() as tables:
            totals, oldest_use = self._count(tables), tables.oldest_use()
        now = self._clock()
        if self._rounds.seconds_left(now):
            oldest_use = None
        return self._bounds.is_exceeded(totals, oldest_use, now)
