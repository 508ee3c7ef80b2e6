"""Opens connections to SQLite whose every fault is a `sqlite3.Error`."""

from __future__ import annotations

import sqlite3
from typing import Any


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


def _damage(error: UnicodeDecodeError) -> sqlite3.DatabaseError:
    text = error.object.decode(errors="backslashreplace")
    damage = sqlite3.DatabaseError(text)
    damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    damage.sqlite_errorname = "SQLITE_CORRUPT"
    return damage
