"""Tests of `fastovms/parts/postgres/schema.py`."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from fastovms.parts.postgres.schema import (
    SharedTables,
    UnsupportedVersion,
    make_tables,
    open_session,
)
from fastovms.state.schema import VERSION
from fastovms.state.tables import Totals


@pytest.fixture
def session(postgres):
    session = open_session(postgres.connection_parameters())
    yield session
    session.close()


def test_transactions_have_time_limits(session):
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


def test_session_prepares_no_statements(session):
    for _ in range(10):
        session.execute("SELECT CAST(? AS int)", (1,))
    assert session.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)


@pytest.mark.slow
def test_missing_answer_ends_the_session(session, monkeypatch):
    monkeypatch.setattr(session._connection, "answer_timeout", 0.2)
    started = time.monotonic()
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT pg_sleep(120)")
    assert time.monotonic() - started < 60
    assert session.is_lost


# Whichever server comes first makes the tables, once.


@pytest.mark.slow
def test_servers_that_start_at_once_make_the_tables_once(postgres):
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
        (99, "the database has the format 99, not 4: it is from a later fastovms"),
        (3, "the database has the format 3, not 4: convert it with fastovms 0.2"),
        (-1, "the database has the format -1, not 4: it is not a known format"),
    ],
)
def test_tables_of_another_version_are_refused(postgres, version, message):
    session = open_session(postgres.connection_parameters())
    make_tables(session)
    session.execute("UPDATE state_version SET version = ?", (version,))
    with pytest.raises(UnsupportedVersion, match=message):
        make_tables(session)
    session.close()


@pytest.mark.slow
def test_totals_are_the_sum_of_all_sessions(postgres):
    sessions = [open_session(postgres.connection_parameters()) for _ in range(3)]
    make_tables(sessions[0])
    for session in sessions:
        tables = SharedTables(session, lambda: 0.0, 1000)
        tables.growth = {"t": Totals(2, 60), "u": Totals(0, 40)}
        tables.write_growth()
        tables.growth = {"t": Totals(-1, 0), "u": Totals(0, -40)}
        tables.write_growth()
    assert tables.server_totals() == (3, 180)
    assert tables.sum_shares() == {"t": (3, 180)}
    used = sessions[0].execute("SELECT count(*) FROM totals WHERE num_bytes <> 0").fetchone()
    assert used == (3,)
    for session in sessions:
        session.close()
