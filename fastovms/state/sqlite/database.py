"""The state database in SQLite."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from fastovms.errors import StateFailed, description_of
from fastovms.state.database import Operation, OperationOutcome, SqlDatabase, StateBounds
from fastovms.state.operations import Operations
from fastovms.state.schema import VERSION, statements, unsupported_version_text
from fastovms.state.tables import (
    Clock,
    Shares,
    Tables,
    Totals,
    add_growth,
    total_of,
)

logger = logging.getLogger(__name__)


_LOCK_TIMEOUT: Final = 5.0
"""Seconds for which a statement waits if another program has locked the database."""


class StateConnection(sqlite3.Connection):
    """A connection that reports every corrupt file as `sqlite3.DatabaseError`.

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
    if the file is not available or is not a database."""
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
        # Commits wait for the disk, so that they survive a power failure.
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


class UnusableFile(Exception):
    """The state file is not available. The message is the reason. `is_fault` is true if the disk
    failed, and false if the directory is a wrong choice."""

    def __init__(self, reason: str, *, is_fault: bool = False) -> None:
        super().__init__(reason)
        self.is_fault = is_fault


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
    """Returns a connection to a database with the state's tables, usable on any thread, one at a
    time. Raises sqlite3.Error if the file is not available or is not a state database. Blobs in the
    tables have checksums (see `tables.seal`)."""
    connection = open_connection(path)
    try:
        _make_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_tables(connection: sqlite3.Connection) -> None:
    """Creates the tables in an empty database. Raises sqlite3.NotSupportedError if there are tables
    of another version."""
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        script = ";".join(("BEGIN", *statements(_DIALECT)))
        connection.executescript(f"{script}; PRAGMA user_version = {VERSION}; COMMIT;")
    elif version != VERSION:
        raise sqlite3.NotSupportedError(
            f"the database has the format {unsupported_version_text(version)}"
        )


IN_MEMORY: Final = ":memory:"
"""The path for a database in memory, which is lost when the process ends."""

_DAMAGES: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def primary_code(error: sqlite3.Error) -> int:
    """Returns SQLite's primary result code, without the extension; 0 = no code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


class Database(SqlDatabase[Tables]):
    """The state in one SQLite file, which no other process may use, or in memory (IN_MEMORY).
    Raises sqlite3.Error if the file is not available or is not a state database.

    Args:
        on_close: called when the file is no longer used.
        on_damage: called once with SQLite's message when the file turns out to be corrupt.

    Attributes:
        is_on_disk: whether the data survive the process.
        totals: the number and size of all objects.
    """

    driver_errors = (sqlite3.Error,)
    max_evicted = 32
    min_wait, max_wait = 0.0, 3600.0
    trouble = ""

    def __init__(
        self,
        path: str,
        bounds: StateBounds,
        clock: Clock,
        on_close: Callable[[], None] = lambda: None,
        on_damage: Callable[[sqlite3.Error], None] = lambda error: None,
    ) -> None:
        super().__init__(bounds, clock)
        self._on_close = on_close
        self._on_damage: Callable[[sqlite3.Error], None] | None = on_damage
        self.is_on_disk = path != IN_MEMORY
        self._connection = open_database(path)
        self._connection.create_function("unix_time", 0, clock)
        try:
            self.tables = self._tables = Tables(self._connection, clock, bounds.max_bytes)
            self._tables.release_running()
            self._shares = dict(self._tables.count())
            self.totals = total_of(self._shares)
        except BaseException:
            self._connection.close()
            raise
        self._operations = Operations(self._tables)

    def faults(self) -> Iterator[str]:
        execute = self._connection.execute
        yield from (text for (text,) in execute("PRAGMA integrity_check") if text != "ok")
        for row in execute("PRAGMA foreign_key_check"):
            yield f"a row of {row[0]} belongs to no object"
        yield from super().faults()

    @contextmanager
    def transaction(self, *, only_reads: bool = False) -> Iterator[Tables]:
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
        self.totals = self.totals.plus(*total_of(self._tables.growth))

    def close(self) -> None:
        self._connection.close()
        self._on_close()

    def _run(self, operation: Operation) -> OperationOutcome:
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

    def _failure(self, error: Exception) -> Exception:
        reason = str(error) if isinstance(error, sqlite3.Error) else description_of(error)
        return StateFailed(f"the state cannot be written: {reason}")

    def _count(self, tables: Tables) -> Totals:
        return self.totals

    def _shares_of(self, tables: Tables) -> Shares:
        return self._shares

    def _note_damage(self, error: sqlite3.Error) -> None:
        if primary_code(error) in _DAMAGES and self._on_damage is not None:
            on_damage, self._on_damage = self._on_damage, None
            on_damage(error)
