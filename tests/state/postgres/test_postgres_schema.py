"""Whichever server comes first makes the tables, once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fastovms.state.postgres.postgres_connection import PostgresSession, open_session
from fastovms.state.postgres.postgres_schema import OtherVersion, make_tables
from fastovms.state.store import ResponseProgress
from fastovms.state.tables import VERSION
from tests.state.transactions import add, do


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


def test_tables_of_version_3_become_those_of_this_one(postgres, make_postgres):
    session = open_session(postgres.connection_parameters())
    make_tables(session)
    expected = columns(session)
    for statement in (
        "DROP TABLE jobs",
        "ALTER TABLE runs DROP COLUMN model, DROP COLUMN attempts",
        "ALTER TABLE event_packs DROP COLUMN outputs",
        "UPDATE state_version SET version = 3",
        "INSERT INTO objects (key, tenant, kind, id, progress, body, size, used_at) "
        "VALUES (1, 't', 0, 'old', 0, '{}', 0, 0)",
        "INSERT INTO runs VALUES (1, 'somebody', 0, 0)",
    ):
        session.execute(statement)
    session.close()
    database = make_postgres()
    assert do(database, lambda state: state.take_over(None, 9)) == []
    do(database, lambda state: state.interrupt_expired(float("inf")))
    left = do(database, lambda state: state.find_events("t", "old", 0))
    assert left.progress is ResponseProgress.INTERRUPTED
    session = open_session(postgres.connection_parameters())
    assert columns(session) == expected
    assert session.execute("SELECT version FROM state_version").fetchall() == [(VERSION,)]
    session.close()


def columns(session: PostgresSession) -> set[tuple[str, ...]]:
    rows = session.execute(
        "SELECT table_name, column_name, data_type, is_nullable, column_default "
        "FROM information_schema.columns WHERE table_schema = 'public'"
    )
    return set(rows.fetchall())


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (99, "its format is 99, not 4: it is of a later fastovms"),
        (2, "its format is 2, not 4: it is none that there ever was"),
    ],
)
def test_another_version_is_left_alone(postgres, version, message):
    session = open_session(postgres.connection_parameters())
    make_tables(session)
    session.execute("UPDATE state_version SET version = ?", (version,))
    with pytest.raises(OtherVersion, match=message):
        make_tables(session)
    session.close()


def test_tables_of_an_older_server_get_shares(postgres, make_postgres):
    database = make_postgres()
    add(database, "a")
    add(database, "b", tenant="u")
    session = open_session(postgres.connection_parameters())
    session.execute("DROP TABLE shares")
    session.execute("DROP INDEX objects_by_tenant")
    assert [*database.faults()] == []  # as `state check` has it, which makes no tables
    database = make_postgres()
    database.check()
    with database.snapshot() as tables:
        assert {tenant: share.num_objects for tenant, share in tables.sum_shares().items()} == {
            "t": 1,
            "u": 1,
        }
    session.close()
