"""The SQL schema of the state, the same in every database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VERSION: Final = 4
"""The version of the schema, the same in every database and in exported states."""

_CONVERTER: Final = "0.2"
"""The version of fastovms that converts every older schema to this one."""


def unsupported_version_text(version: object) -> str:
    """Returns the text of an error about a schema version that this server does not support, with
    the remedy."""
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
    # For finding a tenant's least recently used objects.
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
    # Running responses: the replica that runs each, and the stream so far, which moves to
    # `objects.events` at the end. A response without a model cannot be resumed.
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
    # A table of its own, because rows of `runs` are rewritten with each renewal of a lease.
    """
    CREATE TABLE jobs (
        object {big} PRIMARY KEY REFERENCES objects ON DELETE CASCADE,
        job {blob} NOT NULL
    ) {table}
    """,
)
"""The statements that create the tables. Names in braces differ between databases."""


def statements(dialect: Mapping[str, str]) -> list[str]:
    """Returns the statements that create the tables, in the dialect of a database."""
    return [statement.format_map(dialect) for statement in _STATEMENTS]
