"""Opens connections to SQLite: how they write, how long they wait for a lock, and that each fault
is a `sqlite3.Error`."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

_LOCK_TIMEOUT: Final = 5.0
"""Seconds that a statement waits for the database, where another program has locked it."""


class StateConnection(sqlite3.Connection):
    """A connection that tells damage as `sqlite3.DatabaseError`, whatever SQLite's message about it
    says.

    SQLite quotes what it found in the file, and a damaged name is no UTF-8: Python (3.11 to 3.14)
    then raises UnicodeDecodeError in place of SQLite's own fault.
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
    """Returns a connection to a database, which any one thread may use.

    Raises:
        sqlite3.Error: the file cannot be had, or is no database.
    """
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
