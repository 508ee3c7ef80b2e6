"""Makes the tables of the state database, and those of older versions new. Every blob in them is
sealed (see `seal`)."""

from __future__ import annotations

import sqlite3
from typing import Final

from fastovms.state.seal import LENGTH, seal
from fastovms.state.sqlite.sqlite_connection import open_connection

VERSION: Final = 2
"""The version of the schema, as `PRAGMA user_version` has it."""

_SCHEMA: Final = f"""
BEGIN;
CREATE TABLE objects (
    key INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    kind INTEGER NOT NULL,
    id TEXT NOT NULL,
    progress INTEGER NOT NULL,
    previous_id TEXT,
    body BLOB NOT NULL,
    events BLOB,
    size INTEGER NOT NULL,
    used_at REAL NOT NULL,
    UNIQUE (tenant, kind, id)
) STRICT;
CREATE INDEX objects_by_use ON objects (used_at) WHERE progress <> 0;
CREATE TABLE items (
    object INTEGER NOT NULL REFERENCES objects ON DELETE CASCADE,
    position INTEGER NOT NULL,
    side INTEGER NOT NULL,
    id TEXT NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (object, position)
) STRICT;
CREATE INDEX items_by_id ON items (id);
PRAGMA user_version = {VERSION};
COMMIT;
"""

_SEAL_ALL: Final = f"""
BEGIN;
UPDATE objects SET
    body = seal(body),
    events = seal(events),
    size = size + {LENGTH} * (
        1 + (events IS NOT NULL) + (SELECT count(*) FROM items WHERE object = key)
    );
UPDATE items SET body = seal(body);
PRAGMA user_version = {VERSION};
COMMIT;
"""
"""Makes a database of this version out of one of version 1, in which texts had no checksums."""


def open_database(path: str) -> sqlite3.Connection:
    """Returns a connection to a database with the tables in it, which any one thread may use.

    Raises:
        sqlite3.Error: the file cannot be had, or is no such database.
    """
    connection = open_connection(path)
    try:
        _make_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_tables(connection: sqlite3.Connection) -> None:
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        connection.executescript(_SCHEMA)
    elif version == 1:
        connection.create_function("seal", 1, seal)
        connection.executescript(_SEAL_ALL)
    elif version != VERSION:
        raise sqlite3.NotSupportedError(f"its format is {version}, not {VERSION}")
