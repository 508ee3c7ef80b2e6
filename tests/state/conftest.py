"""State databases in memory, in files and on a PostgreSQL server, with a clock of the test's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fastovms.parts.postgres.database import DatabaseLink, PostgresDatabase
from fastovms.parts.postgres.server_address import ServerAddress
from fastovms.state.database import StateBounds
from fastovms.state.sqlite.database import Database
from tests.postgres_server import PostgresServer

UNBOUNDED = StateBounds(max_age=1e9, max_count=10**9, max_bytes=10**12)

TEST_URL = "FASTOVMS_TEST_STATE_URL"
"""The variable of the environment with the URL of a PostgreSQL server to test with, on which
databases may be made."""


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_sqlite(clock: Clock) -> Iterator[Callable[..., Database]]:
    with ExitStack() as stack:

        def make(bounds: StateBounds = UNBOUNDED, path: str = ":memory:") -> Database:
            database = Database(path, bounds, clock)
            stack.callback(database.close)
            return database

        yield make


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server that a test may kill, and starts again."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def test_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yields the address of a database for the tests of this process."""
    url = os.environ.get(TEST_URL) or request.getfixturevalue("postgres_server").url()
    name = f"fastovms_test_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield make_conninfo(url, dbname=name)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def postgres(test_database: str) -> ServerAddress:
    """The address of an empty database."""
    with psycopg.connect(test_database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return ServerAddress(psycopg.conninfo.conninfo_to_dict(test_database))


@pytest.fixture
def make_postgres(
    postgres: ServerAddress, clock: Clock
) -> Iterator[Callable[..., PostgresDatabase]]:
    """Makes connections to one database, as of as many servers."""
    with ExitStack() as stack:

        def make(bounds: StateBounds = UNBOUNDED, path: str = "", **options) -> PostgresDatabase:
            database = PostgresDatabase(DatabaseLink(postgres), bounds, clock, **options)
            stack.callback(database.close)
            return database

        yield make


@pytest.fixture(params=["sqlite", "postgres"])
def make_database(request: pytest.FixtureRequest) -> Callable[..., Database | PostgresDatabase]:
    return request.getfixturevalue(f"make_{request.param}")
