"""The tables of the state, the same in every database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VERSION: Final = 4
"""The version of the tables, the same in every database and in files that states are exported
to."""

_CONVERTER: Final = "0.2"
"""The fastovms that converts every older version to this one."""


def unsupported_version_text(version: object) -> str:
    """Returns a version that this server does not read, with what to do about it."""
    if isinstance(version, int) and version > VERSION:
        advice = "it is from a later fastovms"
    elif isinstance(version, int) and version > 0:
        advice = f"convert it with fastovms {_CONVERTER}"
    else:
        advice = "it is not a known format"
    return f"{version}, not {VERSION}: {advice}"


_STATEMENTS: Final = (
    """
    CREATE TABLE objects (
        key {key},
        tenant {text} NOT NULL,
        kind {small} NOT NULL,
        id {text} NOT NULL,
        progress {small} NOT NULL,
        previous_id {text},
        body {blob} NOT NULL,
        events {blob},
        size {big} NOT NULL,
        used_at {real} NOT NULL,
        UNIQUE (tenant, kind, id)
    ) {table}
    """,
    "CREATE INDEX objects_by_use ON objects (used_at) WHERE progress <> 0",
    # Finds the least recently used objects of one tenant.
    "CREATE INDEX objects_by_tenant ON objects (tenant, used_at) WHERE progress <> 0",
    """
    CREATE TABLE items (
        {rowid}object {big} NOT NULL REFERENCES objects ON DELETE CASCADE,
        position {integer} NOT NULL,
        side {small} NOT NULL,
        id {text} NOT NULL,
        body {blob} NOT NULL,
        UNIQUE (object, position)
    ) {table}
    """,
    "CREATE INDEX items_by_id ON items (id{by_rowid})",
    # The responses that run: the replica that runs each, and its stream so far. Once they are
    # finished, `objects.events` has all of it. A response without a model cannot be resumed.
    """
    CREATE TABLE runs (
        object {big} PRIMARY KEY REFERENCES objects ON DELETE CASCADE,
        owner {text} NOT NULL,
        lease_until {real} NOT NULL,
        cancel_requested {small} NOT NULL,
        model {text} NOT NULL DEFAULT '',
        attempts {integer} NOT NULL DEFAULT 0
    ) {hot_table}
    """,
    """
    CREATE TABLE event_packs (
        object {big} NOT NULL REFERENCES objects ON DELETE CASCADE,
        first {big} NOT NULL,
        data {blob} NOT NULL,
        outputs {blob},
        PRIMARY KEY (object, first)
    ) {keyed_table}
    """,
    # Not a column of `runs`, whose rows are rewritten with each renewal of a lease.
    """
    CREATE TABLE jobs (
        object {big} PRIMARY KEY REFERENCES objects ON DELETE CASCADE,
        job {blob} NOT NULL
    ) {table}
    """,
)
"""Creates the tables. Names in braces are what databases call differently."""


def statements(dialect: Mapping[str, str]) -> list[str]:
    """Returns the statements that create the tables, in the dialect of a database."""
    return [statement.format_map(dialect) for statement in _STATEMENTS]
