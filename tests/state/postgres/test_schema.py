"""Tests of `fastovms/parts/postgres/schema.py`."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from fastovms.parts.postgres.schema import (
    OtherVersion,
    PostgresSession,
    SharedTables,
    make_tables,
    open_session,
)
from fastovms.state.store import ResponseProgress
from fastovms.state.tables import VERSION, Totals
from tests.state.transactions import add, do


@pytest.fixture
def session(postgres):
    session = open_session(postgres.connection_parameters())
    yield session
    session.close()


def test_values_come_back_as_they_were(session):
    values = ("text\u00e9", b"\0\xff", 2**40, 0.1, None)
    row = session.execute(
        "SELECT CAST(? AS text), CAST(? AS bytea), CAST(? AS bigint), "
        "CAST(? AS double precision), CAST(? AS text)",
        values,
    ).fetchone()
    assert row == values


def test_a_transaction_has_its_limits_and_its_session_has_none(session):
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    show = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)
    outside = session.execute(show).fetchone()
    session.begin()
    assert session.execute(show).fetchone() == ("8s", "5s", "15s")
    assert session.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
    session.commit()
    session.begin(only_reads=True)
    assert session.execute("SHOW transaction_isolation").fetchone() == ("repeatable read",)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        session.execute("CREATE TABLE x (y int)")
    session.rollback()
    assert session.execute(show).fetchone() == outside
    assert not session.is_lost


def test_nothing_is_prepared(session):
    for _ in range(10):
        session.execute("SELECT CAST(? AS int)", (1,))
    assert session.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)


@pytest.mark.slow
def test_an_answer_that_does_not_come_is_not_waited_for(session, monkeypatch):
    monkeypatch.setattr(session._connection, "answer_timeout", 0.2)
    started = time.monotonic()
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT pg_sleep(30)")
    assert time.monotonic() - started < 5
    assert session.is_lost


# Whichever server comes first makes the tables, once.


@pytest.mark.slow
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
        (99, "the database has the format 99, not 4: it is from a later fastovms"),
        (2, "the database has the format 2, not 4: it is not a known format"),
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


@pytest.mark.slow
def test_the_slots_of_all_sessions_are_counted(postgres):
    sessions = [open_session(postgres.connection_parameters()) for _ in range(3)]
    make_tables(sessions[0])
    for session in sessions:
        tables = SharedTables(session, lambda: 0.0, 1000)
        tables.growth = {"t": Totals(2, 60), "u": Totals(0, 40)}
        tables.write_growth()
        tables.growth = {"t": Totals(-1, 0), "u": Totals(0, -40)}
        tables.write_growth()
    assert tables.sum_slots() == (3, 180)
    assert tables.sum_shares() == {"t": (3, 180)}
    used = sessions[0].execute("SELECT count(*) FROM totals WHERE num_bytes <> 0").fetchone()
    assert used == (3,)
    for session in sessions:
        session.close()


def test_what_an_older_server_has_written_is_counted_by_tenant(postgres, make_postgres):
    database = make_postgres()
    add(database, "a")
    [size] = database.connect().session.execute("SELECT size FROM objects").fetchone()
    # A server of an older version makes no shares, and writes none of its own.
    for statement in (
        "INSERT INTO objects (tenant, kind, id, progress, body, size, used_at) "
        "VALUES ('u', 0, 'old', 1, '', 500, 0)",
        "UPDATE totals SET num_objects = num_objects + 1, num_bytes = num_bytes + 500 "
        "WHERE slot = 63",
    ):
        database.connect().session.execute(statement)
    with database.transaction() as tables:
        tables.recount_shares()
    with database.snapshot() as tables:
        assert tables.sum_shares() == {"t": (1, size), "u": (1, 500)}
