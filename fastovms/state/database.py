"""Runs the transactions of the state database, and keeps it within its bounds: drops what is too
old, too many or too large. It is synchronous: a thread of its own uses it."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from fastovms.errors import StateFailed, description_of
from fastovms.state.database_schema import open_database
from fastovms.state.operations import Operations
from fastovms.state.tables import Clock, Tables, Totals

logger = logging.getLogger(__name__)

_MAX_EVICTED: Final = 32
"""How many objects one transaction evicts."""

IN_MEMORY: Final = ":memory:"
"""Stands for a path where nothing is to outlive the process."""

_DAMAGES: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

Operation = Callable[[Operations], object]


class StateBounds(NamedTuple):
    """What may be kept: seconds since the last use, objects, bytes."""

    max_age: float
    max_count: int
    max_bytes: int


class OperationOutcome(NamedTuple):
    """What an operation returned, or why it changed nothing."""

    result: object = None
    error: Exception | None = None


def primary_code(error: sqlite3.Error) -> int:
    """Returns SQLite's result code without its extension; 0 = there is none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


class Database:
    """A state in one file, or IN_MEMORY, which no other process may use at the same time.

    Objects are evicted in the order of their last use once they are too old, too many or too large
    together. Responses that still run are not.

    Args:
        clock: tells unix time in seconds; it goes on while no process runs.
        on_close: called when the file is no longer used.
        on_damage: called once, when the file turns out to be damaged, with what SQLite says.

    Attributes:
        is_on_disk: whether what is kept outlives the process.

    Raises:
        sqlite3.Error: the file cannot be had, or is no such database.
    """

    def __init__(
        self,
        path: str,
        bounds: StateBounds,
        clock: Clock,
        on_close: Callable[[], None] = lambda: None,
        on_damage: Callable[[sqlite3.Error], None] = lambda error: None,
    ) -> None:
        self._on_close = on_close
        self._on_damage: Callable[[sqlite3.Error], None] | None = on_damage
        self._bounds = bounds
        self._clock = clock
        self.is_on_disk = path != IN_MEMORY
        self._connection = open_database(path)
        try:
            self._tables = Tables(self._connection, clock, bounds.max_bytes)
            self._tables.interrupt_running()
        except BaseException:
            self._connection.close()
            raise
        self._operations = Operations(self._tables)

    @property
    def totals(self) -> Totals:
        return self._tables.totals

    def transact(self, operations: Sequence[Operation]) -> list[OperationOutcome]:
        """Runs operations in one transaction, and raises nothing. One that raises leaves the
        others alone. Where the transaction itself fails, as on a full disk, each gets one of its
        own: what only reads, or writes little, may still succeed."""
        try:
            with self._transaction():
                outcomes = [self._attempt(operation) for operation in operations]
        except Exception as error:
            if len(operations) > 1:
                return [self.transact([operation])[0] for operation in operations]
            reason = str(error) if isinstance(error, sqlite3.Error) else description_of(error)
            return [OperationOutcome(error=StateFailed(f"the state cannot be written: {reason}"))]
        self._write_uses()
        return outcomes

    def evict(self) -> bool:
        """Evicts a few objects, where that is due. Returns whether more are.

        Raises:
            sqlite3.Error: nothing is evicted.
        """
        if not self._is_due():
            return False
        max_age, max_count, max_bytes = self._bounds
        oldest_kept = self._clock() - max_age
        count, num_bytes = self._tables.totals
        sizes: dict[int, int] = {}
        for key, size, used_at in self._tables.oldest(_MAX_EVICTED):
            if count <= max_count and num_bytes <= max_bytes and used_at > oldest_kept:
                break
            sizes[key] = size
            count -= 1
            num_bytes -= size
        with self._transaction():
            self._tables.delete_keys(sizes)
        return bool(sizes) and self._is_due()

    def seconds_to_expiry(self) -> float | None:
        """Returns the seconds until the next object is too old; None = there is none."""
        oldest = self._tables.oldest_use()
        if oldest is None:
            return None
        return max(0.0, oldest + self._bounds.max_age - self._clock())

    def add_all(self, other: Database) -> None:
        """Adds everything that the other database keeps, in place of what has the same id here.

        Raises:
            sqlite3.Error: nothing is added.
        """
        with self._transaction():
            self._tables.add_all(other._tables)

    def check(self) -> None:
        """Raises AssertionError when what is kept contradicts itself. It reads everything."""
        self._tables.check()

    def close(self) -> None:
        self._connection.close()
        self._on_close()

    def _write_uses(self) -> None:
        """Writes down which objects were used. Where that fails, later uses are noted all the
        same."""
        if not self._tables.has_uses:
            return
        try:
            with self._transaction():
                self._tables.write_uses()
        except Exception:
            logger.debug("the last uses of what is kept are not noted", exc_info=True)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commits what is done within it, or nothing where that raises."""
        totals = self._tables.totals
        try:
            self._connection.execute("BEGIN")
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            if isinstance(error, sqlite3.Error):
                self._note_damage(error)
            self._tables.totals = totals
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _attempt(self, operation: Operation) -> OperationOutcome:
        """Runs one operation, and returns its outcome.

        Raises:
            sqlite3.Error: SQLite has ended the whole transaction, as for a full disk.
        """
        totals = self._tables.totals
        self._connection.execute("SAVEPOINT operation")
        try:
            result = operation(self._operations)
        except Exception as error:
            if not self._connection.in_transaction:
                raise
            self._tables.totals = totals
            self._connection.execute("ROLLBACK TO operation")
            self._connection.execute("RELEASE operation")
            if isinstance(error, sqlite3.Error):
                self._note_damage(error)
                error = StateFailed(f"the state cannot be read or written: {error}")
            return OperationOutcome(error=error)
        self._connection.execute("RELEASE operation")
        return OperationOutcome(result)

    def _note_damage(self, error: sqlite3.Error) -> None:
        if primary_code(error) in _DAMAGES and self._on_damage is not None:
            on_damage, self._on_damage = self._on_damage, None
            on_damage(error)

    def _is_due(self) -> bool:
        count, num_bytes = self._tables.totals
        if count > self._bounds.max_count or num_bytes > self._bounds.max_bytes:
            return True
        seconds = self.seconds_to_expiry()
        return seconds is not None and seconds <= 0.0
