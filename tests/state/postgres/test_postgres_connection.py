from __future__ import annotations

import time

import psycopg
import pytest

from fastovms.state.postgres.postgres_connection import open_session


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


def test_an_answer_that_does_not_come_is_not_waited_for(session, monkeypatch):
    monkeypatch.setattr(session._connection, "answer_timeout", 0.2)
    started = time.monotonic()
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT pg_sleep(30)")
    assert time.monotonic() - started < 5
    assert session.is_lost
