"""Makes the tables of the state database, and those of older versions new. Every blob in them is
sealed (see `seal`)."""

from __future__ import annotations

import sqlite3
from typing import Final

from fastovms.state.seal import LENGTH, seal
from fastovms.state.sqlite.sqlite_connection import open_connection
from fastovms.state.tables import VERSION

_RUNNING: Final = """
CREATE TABLE runs (
    object INTEGER PRIMARY KEY REFERENCES objects ON DELETE CASCADE,
    owner TEXT NOT NULL,
    lease_until REAL NOT NULL,
    cancel_requested INTEGER NOT NULL
) STRICT;
CREATE TABLE event_packs (
    object INTEGER NOT NULL REFERENCES objects ON DELETE CASCADE,
    first INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (object, first)
) STRICT, WITHOUT ROWID;
"""
"""The tables of responses that run: who runs them, and what their streams have told so far. Once
they are finished, `objects.events` has all of it."""

_RESUMPTION: Final = """
ALTER TABLE runs ADD COLUMN model TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE event_packs ADD COLUMN outputs BLOB;
CREATE TABLE jobs (
    object INTEGER PRIMARY KEY REFERENCES objects ON DELETE CASCADE,
    job BLOB NOT NULL
) STRICT;
"""
"""What it takes to go on with a response whose process has ended: the model, what was asked for,
and what the model has said. Without a model nobody can."""

_ADD_SHARES: Final = """
CREATE INDEX IF NOT EXISTS objects_by_tenant ON objects (tenant, used_at) WHERE progress <> 0
"""
"""Finds the least recently used objects of one tenant. Older servers of this version have not made
the index, and use a database that has it."""

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
{_RUNNING}
{_RESUMPTION}
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
PRAGMA user_version = 2;
COMMIT;
"""
"""Makes a database of version 2 out of one of version 1, in which texts had no checksums."""

_ADD_RUNNING: Final = f"""
BEGIN;
UPDATE objects SET progress = 2 WHERE progress = 0;
{_RUNNING}
PRAGMA user_version = 3;
COMMIT;
"""
"""Makes a database of version 3 out of one of version 2, in which nobody owned what was running."""


_ADD_RESUMPTION: Final = f"""
BEGIN;
{_RESUMPTION}
PRAGMA user_version = 4;
COMMIT;
"""
"""Makes a database of version 4 out of one of version 3, in which nobody could go on with what was
cut off."""


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
    """Makes the tables, or those of this version out of those of an older one."""
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        connection.executescript(_SCHEMA)
    elif not 1 <= version <= VERSION:
        raise sqlite3.NotSupportedError(f"its format is {version}, not {VERSION}")
    elif version == 1:
        connection.create_function("seal", 1, seal)
        connection.executescript(_SEAL_ALL)
    if 1 <= version <= 2:
        connection.executescript(_ADD_RUNNING)
    if 1 <= version <= 3:
        connection.executescript(_ADD_RESUMPTION)
    connection.execute(_ADD_SHARES)
