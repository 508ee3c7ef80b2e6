"""Opens a PostgreSQL database for one task, outside any server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from fastovms.errors import StateFailed
from fastovms.state.postgres.database_link import DatabaseLink
from fastovms.state.postgres.postgres_connection import OF_COMMANDS, Unreachable
from fastovms.state.postgres.postgres_database import ConnectionLost, PostgresDatabase
from fastovms.state.postgres.server_address import ServerAddress
from fastovms.state.state_database import StateBounds


@contextmanager
def open_url(address: ServerAddress, bounds: StateBounds) -> Iterator[PostgresDatabase]:
    """Opens the database, in which tables are made unless they are there.

    Raises:
        StateFailed: it cannot be read or written, then or within.
    """
    database = PostgresDatabase(DatabaseLink(address, limits=OF_COMMANDS), bounds, time.time)
    try:
        database.connect()
        yield database
    except (Unreachable, ConnectionLost, psycopg.Error) as error:
        raise StateFailed(f"{address}: {' '.join(str(error).split())}") from None
    finally:
        database.close()
