"""Opens a PostgreSQL database for one task, outside any server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from fastovms.errors import ConfigurationError, StateFailed
from fastovms.state.postgres.database_link import DatabaseLink
from fastovms.state.postgres.postgres_connection import OF_COMMANDS, Unreachable
from fastovms.state.postgres.postgres_database import ConnectionLost, PostgresDatabase
from fastovms.state.postgres.postgres_schema import NoTables, make_tables, need_tables
from fastovms.state.postgres.server_address import ServerAddress
from fastovms.state.state_database import StateBounds


@contextmanager
def open_url(
    address: ServerAddress, bounds: StateBounds, *, must_exist: bool = False
) -> Iterator[PostgresDatabase]:
    """Opens the database. Tables are made unless they are there, or must exist.

    Raises:
        ConfigurationError: there is no state in it, though it must exist.
        StateFailed: it cannot be read or written, then or within.
    """
    link = DatabaseLink(
        address,
        limits=OF_COMMANDS,
        prepare=need_tables if must_exist else make_tables,
        warn=lambda reason: None,  # whoever has called tells it
    )
    database = PostgresDatabase(link, bounds, time.time)
    try:
        database.connect()
        yield database
    except NoTables as error:
        raise ConfigurationError(f"there is no state in {address}: {error}") from None
    except (Unreachable, ConnectionLost, psycopg.Error) as error:
        raise StateFailed(f"{address}: {' '.join(str(error).split())}") from None
    finally:
        database.close()
