"""Whichever server comes first makes the tables, once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fastovms.state.postgres.postgres_connection import open_session
from fastovms.state.postgres.postgres_schema import OtherVersion, make_tables
from fastovms.state.tables import VERSION


def test_many_servers_start_at_the_same_time(postgres):
    def start(_: int) -> None:
        session = open_session(postgres.connection_parameters())
        make_tables(session)
        session.close()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(start, range(16)))
    session = open_session(postgres.connection_parameters())
    versions = session.execute("SELECT version FROM state_version").fetchall()
    assert versions == [(VERSION,)]
    session.close()


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (99, "its format is 99, not 3: it is of a later fastovms"),
        (2, "its format is 2, not 3: it is none that there ever was"),
    ],
)
def test_another_version_is_left_alone(postgres, version, message):
    session = open_session(postgres.connection_parameters())
    make_tables(session)
    session.execute("UPDATE state_version SET version = ?", (version,))
    with pytest.raises(OtherVersion, match=message):
        make_tables(session)
    session.close()
