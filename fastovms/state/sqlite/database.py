"""The store in SQLite."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from fastovms.errors import StateFailed, description_of
from fastovms.state.operations import Operations
from fastovms.state.schema import VERSION, other_version, statements
from fastovms.state.state_store import Eviction, Operation, OperationOutcome, StateBounds
from fastovms.state.tables import (
    COLUMNS,
    RUN_COLUMNS,
    Clock,
    Tables,
    Totals,
    add_growth,
    total_of,
)
from fastovms.system.clock import ExpiryRounds

logger = logging.getLogger(__name__)


_LOCK_TIMEOUT: Final = 5.0
"""Seconds that a statement waits for the database, where another program has locked it."""


class StateConnection(sqlite3.Connection):
    """A connection that reports damaged files always as `sqlite3.DatabaseError`.

    SQLite's message may quote text that is not UTF-8; Python (3.11 to 3.14) then raises
    UnicodeDecodeError instead of SQLite's error.
    """

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        try:
            return super().execute(*arguments)
        except UnicodeDecodeError as error:
            raise _damage(error) from error

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        try:
            return super().executescript(script)
        except UnicodeDecodeError as error:
            raise _damage(error) from error


def open_connection(path: str) -> StateConnection:
    """Returns a connection to a database, usable on any thread, one at a time. Raises sqlite3.Error
    if the file is not available, or is not a database."""
    connection = sqlite3.connect(
        path,
        timeout=_LOCK_TIMEOUT,
        isolation_level=None,
        check_same_thread=False,
        factory=StateConnection,
    )
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA journal_mode = WAL")
        # A commit is on the disk, not only in the system's memory: a box may lose its power.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 8388608")
        connection.execute("PRAGMA secure_delete = FAST")
    except BaseException:
        connection.close()
        raise
    return connection


def _damage(error: UnicodeDecodeError) -> sqlite3.DatabaseError:
    text = error.object.decode(errors="backslashreplace")
    damage = sqlite3.DatabaseError(text)
    damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    damage.sqlite_errorname = "SQLITE_CORRUPT"
    return damage


_FIRST_DELAY: Final = 1.0
_MAX_DELAY: Final = 60.0
"""The most seconds between two attempts; each delay is twice the one before."""


class UnusableFile(Exception):
    """The file of the state is not available. The message is the reason. `is_fault` says whether
    the disk failed, as opposed to a wrongly chosen directory."""

    def __init__(self, reason: str, *, is_fault: bool = False) -> None:
        super().__init__(reason)
        self.is_fault = is_fault


class DiskReturn:
    """Tries to open the file of the state again, at growing intervals, and moves the data in memory
    to it.

    Args:
        open_file: opens the file; raises UnusableFile.
        reason: why the file is not available at first.
        clock: returns monotonic seconds.

    Attributes:
        reason: the reason of the last failed attempt.
    """

    def __init__(
        self,
        open_file: Callable[[], Database],
        reason: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_file = open_file
        self._clock = clock
        self._delay = _FIRST_DELAY
        self._due_at = clock() + self._delay
        self.reason = reason

    def seconds_left(self) -> float:
        """Returns the seconds until the next attempt; 0 = now."""
        return max(0.0, self._due_at - self._clock())

    def attempt(self, memory: Database) -> Database | None:
        """Tries to open the file and to move all data of `memory` to it. Returns the file's
        database; None = failed, and the next attempt is made later."""
        try:
            return self._move(memory)
        except (UnusableFile, sqlite3.Error) as error:
            self._note(str(error))
        except Exception as error:
            self._note(description_of(error))
        self._delay = min(2 * self._delay, _MAX_DELAY)
        self._due_at = self._clock() + self._delay
        return None

    def _move(self, memory: Database) -> Database:
        """Moves everything into the file. Errors are raised after the file is closed."""
        database = self._open_file()
        try:
            database.add_all(memory)
        except BaseException:
            database.close()
            raise
        logger.warning(
            "response store: the disk is used from now on, with %d objects that were kept in "
            "memory",
            memory.totals.num_objects,
        )
        return database

    def _note(self, reason: str) -> None:
        if reason != self.reason:
            logger.warning("response store: still in memory only: %s", reason)
        self.reason = reason


_DIALECT: Final = {
    **dict.fromkeys(("small", "integer", "big"), "INTEGER"),
    **dict.fromkeys(("table", "hot_table"), "STRICT"),
    "keyed_table": "STRICT, WITHOUT ROWID",
    "key": "INTEGER PRIMARY KEY",
    "text": "TEXT",
    "blob": "BLOB",
    "real": "REAL",
    "rowid": "",
    "by_rowid": "",
}


def open_database(path: str) -> sqlite3.Connection:
    """Returns a connection to a database with its tables, usable on any thread, one at a time.
    Raises sqlite3.Error if the file is not available, or is not a database of this kind. Every blob
    in the tables is sealed (see `tables.seal`)."""
    connection = open_connection(path)
    try:
        _make_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_tables(connection: sqlite3.Connection) -> None:
    """Creates the tables in an empty database. Raises sqlite3.NotSupportedError if the tables have
    another version."""
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        script = ";".join(("BEGIN", *statements(_DIALECT)))
        connection.executescript(f"{script}; PRAGMA user_version = {VERSION}; COMMIT;")
    elif version != VERSION:
        raise sqlite3.NotSupportedError(f"the database has the format {other_version(version)}")


_MAX_EVICTED: Final = 32
"""How many objects one transaction evicts."""

IN_MEMORY: Final = ":memory:"
"""Stands for a path where nothing is to outlive the process."""

_DAMAGES: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

_MAX_WAIT: Final = 3600.0
"""Seconds after which to look for what is too old, at the latest."""


def primary_code(error: sqlite3.Error) -> int:
    """Returns SQLite's result code without its extension; 0 = no code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


class Database:
    """The state in one file, which no other process may use, or in memory (IN_MEMORY).

    Objects are evicted once they are too old, too many or too large together (see `Eviction`).
    Raises sqlite3.Error if the file is not available, or is not a database of this kind.

    Synchronous: a thread of its own uses it.

    Args:
        clock: returns the Unix time in seconds.
        on_close: called when the file is no longer used.
        on_damage: called once, when the file turns out to be damaged, with SQLite's message.
        unread: see `Operations`.

    Attributes:
        is_on_disk: whether the data survive the process.
    """

    def __init__(
        self,
        path: str,
        bounds: StateBounds,
        clock: Clock,
        on_close: Callable[[], None] = lambda: None,
        on_damage: Callable[[sqlite3.Error], None] = lambda error: None,
        unread: str = "",
    ) -> None:
        self._on_close = on_close
        self._on_damage: Callable[[sqlite3.Error], None] | None = on_damage
        self._bounds = bounds
        self._clock = clock
        self._rounds = ExpiryRounds("responses and conversations")
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
        self._operations = Operations(self._tables, unread=unread)

    @property
    def totals(self) -> Totals:
        return self._totals

    @property
    def trouble(self) -> str:
        return ""

    def transact(self, operations: Sequence[Operation]) -> list[OperationOutcome]:
        """Runs operations in one transaction, and returns their outcomes; does not raise. A failing
        operation does not affect the others. If the transaction itself fails, for example on a full
        disk, each is run in a separate one, so that some may succeed."""
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
        """Evicts a few objects, if due. Returns the seconds until the next call. Raises StateFailed
        if the eviction failed."""
        try:
            if self.evict():
                return 0.0
            expiry = self.seconds_to_expiry()
        except sqlite3.Error as error:
            raise StateFailed(f"old responses cannot be deleted: {error}") from error
        return _MAX_WAIT if expiry is None else min(expiry, _MAX_WAIT)

    def evict(self) -> bool:
        """Evicts a few objects, if due. Returns whether more are due. Raises sqlite3.Error if
        nothing is evicted."""
        if not self._is_due():
            return False
        with self.transaction():
            eviction = Eviction(
                self._tables, self._bounds, self._shares, _MAX_EVICTED, self._rounds
            )
            has_evicted = eviction.run(self._clock())
        return has_evicted and self._is_due()

    def seconds_to_expiry(self) -> float | None:
        """Returns the seconds until the next object is too old; None = no objects."""
        now = self._clock()
        seconds = self._bounds.seconds_to_expiry(self._tables.oldest_use(), now)
        return None if seconds is None else max(seconds, self._rounds.seconds_left(now))

    def add_all(self, other: Database) -> None:
        """Copies all objects of the other database; objects with the same id are replaced. Raises
        sqlite3.Error if nothing is added."""
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
        """Raises AssertionError if the stored data are inconsistent. Reads all rows."""
        assert list(self.faults()) == []

    def faults(self) -> Iterator[str]:
        """Yields the inconsistencies. Reads all rows. Raises sqlite3.Error if the file cannot be
        read."""
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
        """A transaction: commits at the end of the context, or rolls back on an error. Raises
        sqlite3.Error if the commit failed."""
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
        """Writes down which objects were used. If that fails, later uses are recorded
        nevertheless."""
        if not self._tables.has_uses:
            return
        try:
            with self.transaction():
                self._tables.write_uses()
        except Exception:
            logger.debug(
                "response store: the last uses of stored objects are not recorded", exc_info=True
            )

    def _attempt(self, operation: Operation) -> OperationOutcome:
        """Runs one operation, and returns its outcome. Raises sqlite3.Error if SQLite has ended the
        whole transaction, as for a full disk."""
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
        now = self._clock()
        oldest_use = None if self._rounds.seconds_left(now) else self._tables.oldest_use()
        return self._bounds.is_exceeded(self._totals, oldest_use, now)
