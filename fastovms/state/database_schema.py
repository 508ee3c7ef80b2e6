"""Makes the tables of the state database, and opens it. Every blob in them is sealed (see
`seal`)."""

from __future__ import annotations

import sqlite3
from typing import Final

from fastovms.state.connection import StateConnection
from fastovms.state.seal import LENGTH, seal

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


def open_connection(path: str) -> sqlite3.Connection:
    """Returns a connection to a database with the tables in it, which any one thread may use.

    Raises:
        sqlite3.Error: the file cannot be had, or is no such database.
    """
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, factory=StateConnection
    )
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA journal_mode = WAL")
        # A commit is on the disk, not only in the system's memory: a box may lose its power.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 8388608")
        connection.execute("PRAGMA secure_delete = FAST")
        [version] = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.executescript(_SCHEMA)
        elif version == 1:
            connection.create_function("seal", 1, seal)
            connection.executescript(_SEAL_ALL)
        elif version != VERSION:
            raise sqlite3.NotSupportedError(f"its format is {version}, not {VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection
