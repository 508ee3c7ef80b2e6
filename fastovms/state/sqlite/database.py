"""Runs the transactions of the state database, and keeps it within its bounds: drops what is too
old, too many or too large. It is synchronous: a thread of its own uses it."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from fastovms.errors import StateFailed, description_of
from fastovms.state.operations import Operations
from fastovms.state.sqlite.database_schema import open_database
from fastovms.state.state_database import Eviction, Operation, OperationOutcome, StateBounds
from fastovms.state.tables import (
    COLUMNS,
    RUN_COLUMNS,
    Clock,
    Tables,
    Totals,
    add_growth,
    total_of,
)

logger = logging.getLogger(__name__)

_MAX_EVICTED: Final = 32
"""How many objects one transaction evicts."""

IN_MEMORY: Final = ":memory:"
"""Stands for a path where nothing is to outlive the process."""

_DAMAGES: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

_MAX_WAIT: Final = 3600.0
"""Seconds after which to look for what is too old, at the latest."""


def primary_code(error: sqlite3.Error) -> int:
    """Returns SQLite's result code without its extension; 0 = there is none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


class Database:
    """A state in one file, or IN_MEMORY, which no other process may use at the same time.

    Objects are evicted once they are too old, too many or too large together (see `Eviction`).

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
        self._connection.create_function("unix_time", 0, clock)
        try:
            self._tables = Tables(self._connection, clock, bounds.max_bytes)
            self._tables.release_running()
            self._shares = dict(self._tables.count())
            self._totals = total_of(self._shares)
        except BaseException:
            self._connection.close()
            raise
        self._operations = Operations(self._tables)

    @property
    def totals(self) -> Totals:
        return self._totals

    @property
    def trouble(self) -> str:
        return ""

    def transact(self, operations: Sequence[Operation]) -> list[OperationOutcome]:
        """Runs operations in one transaction, and raises nothing. One that raises leaves the
        others alone. Where the transaction itself fails, as on a full disk, each gets one of its
        own: what only reads, or writes little, may still succeed."""
        try:
            with self.transaction():
                outcomes = [self._attempt(operation) for operation in operations]
        except Exception as error:
            if len(operations) > 1:
                return [self.transact([operation])[0] for operation in operations]
            reason = str(error) if isinstance(error, sqlite3.Error) else description_of(error)
            return [OperationOutcome(error=StateFailed(f"the state cannot be written: {reason}"))]
        self._write_uses()
        return outcomes

    def keep_house(self) -> float:
        """Evicts a few objects, where that is due. Returns the seconds after which to do so again.

        Raises:
            StateFailed: nothing is evicted.
        """
        try:
            if self.evict():
                return 0.0
            expiry = self.seconds_to_expiry()
        except sqlite3.Error as error:
            raise StateFailed(f"nothing is evicted: {error}") from error
        return _MAX_WAIT if expiry is None else min(expiry, _MAX_WAIT)

    def evict(self) -> bool:
        """Evicts a few objects, where that is due. Returns whether more are.

        Raises:
            sqlite3.Error: nothing is evicted.
        """
        if not self._is_due():
            return False
        with self.transaction():
            eviction = Eviction(self._tables, self._bounds, self._shares, _MAX_EVICTED)
            has_evicted = eviction.run(self._clock())
        return has_evicted and self._is_due()

    def seconds_to_expiry(self) -> float | None:
        """Returns the seconds until the next object is too old; None = there is none."""
        return self._bounds.seconds_to_expiry(self._tables.oldest_use(), self._clock())

    def add_all(self, other: Database) -> None:
        """Adds everything that the other database keeps; an object takes the place of one with its
        id.

        Raises:
            sqlite3.Error: nothing is added.
        """
        read = other._connection.execute
        add = self._connection.executemany
        with self.transaction():
            [last] = self._connection.execute(
                "SELECT coalesce(max(key), 0) FROM objects"
            ).fetchone()
            add(
                "DELETE FROM objects WHERE tenant = ? AND kind = ? AND id = ?",
                read("SELECT tenant, kind, id FROM objects"),
            )
            add(
                f"INSERT INTO objects (key, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                read(f"SELECT key + ?, {COLUMNS} FROM objects", (last,)),
            )
            # In the order in which they were added, by which the newest one of an id is found.
            add(
                "INSERT INTO items VALUES (?, ?, ?, ?, ?)",
                read(
                    "SELECT object + ?, position, side, id, body FROM items ORDER BY rowid",
                    (last,),
                ),
            )
            add(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)",
                read(f"SELECT object + ?, {RUN_COLUMNS} FROM runs", (last,)),
            )
            add("INSERT INTO jobs VALUES (?, ?)", read("SELECT object + ?, job FROM jobs", (last,)))
            add(
                "INSERT INTO event_packs VALUES (?, ?, ?, ?)",
                read("SELECT object + ?, first, data, outputs FROM event_packs", (last,)),
            )
            shares = self._tables.count()
        self._shares, self._totals = dict(shares), total_of(shares)

    def check(self) -> None:
        """Raises AssertionError when what is kept contradicts itself. It reads everything."""
        assert list(self.faults()) == []

    def faults(self) -> Iterator[str]:
        """Yields what contradicts what. It reads everything.

        Raises:
            sqlite3.Error: it cannot be read.
        """
        execute = self._connection.execute
        yield from (text for (text,) in execute("PRAGMA integrity_check") if text != "ok")
        for row in execute("PRAGMA foreign_key_check"):
            yield f"a row of {row[0]} is nobody's"
        yield from self._tables.faults(self._totals, self._shares)

    def snapshot(self) -> AbstractContextManager[Tables]:
        """A transaction that only reads."""
        return self.transaction()

    @contextmanager
    def transaction(self) -> Iterator[Tables]:
        """Commits what is done within it, or nothing where that raises.

        Raises:
            sqlite3.Error: it is not committed.
        """
        self._tables.growth = {}
        try:
            self._connection.execute("BEGIN")
            yield self._tables
            self._connection.execute("COMMIT")
        except BaseException as error:
            if isinstance(error, sqlite3.Error):
                self._note_damage(error)
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        add_growth(self._shares, self._tables.growth)
        self._totals = self._totals.plus(*total_of(self._tables.growth))

    def close(self) -> None:
        self._connection.close()
        self._on_close()

    def _write_uses(self) -> None:
        """Writes down which objects were used. Where that fails, later uses are noted all the
        same."""
        if not self._tables.has_uses:
            return
        try:
            with self.transaction():
                self._tables.write_uses()
        except Exception:
            logger.debug("the last uses of what is kept are not noted", exc_info=True)

    def _attempt(self, operation: Operation) -> OperationOutcome:
        """Runs one operation, and returns its outcome.

        Raises:
            sqlite3.Error: SQLite has ended the whole transaction, as for a full disk.
        """
        growth = dict(self._tables.growth)
        self._connection.execute("SAVEPOINT operation")
        try:
            result = operation(self._operations)
        except Exception as error:
            if not self._connection.in_transaction:
                raise
            self._tables.growth = growth
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
        return self._bounds.is_exceeded(self._totals, self._tables.oldest_use(), self._clock())
