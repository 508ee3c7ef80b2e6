"""Transactions on a database that others change, and a connection that may be lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from fastovms.errors import StateFailed
from fastovms.state.postgres.database_link import DatabaseLink
from fastovms.state.postgres.postgres_connection import PostgresSession
from fastovms.state.postgres.postgres_database import EVICTION_LOCK, PostgresDatabase
from fastovms.state.store import Page, StoredResponse, UnknownCursor
from tests.state.conftest import UNBOUNDED
from tests.state.transactions import add, context, do, find, ids, items


def kill_sessions(database: PostgresDatabase) -> None:
    """Ends the sessions of all others on the server."""
    session = database.connect().session
    session.execute(
        "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


@pytest.mark.parametrize("only_reads", [False, True])
def test_a_connection_that_was_lost_costs_nothing(make_postgres, only_reads):
    other = make_postgres()
    add(other, "a")
    database = make_postgres(only_reads=only_reads)
    assert find(database, "a") is not None
    kill_sessions(other)
    assert find(database, "a") is not None
    assert database.is_on_disk


def test_a_connection_that_is_lost_within_a_transaction(make_postgres):
    """Nothing was committed, so that the operation is done again."""
    other, database = make_postgres(), make_postgres()
    calls = []

    def operation(state):
        calls.append(len(calls))
        state.add_conversation("t", "c", b"{}", [])
        if len(calls) == 1:
            kill_sessions(other)
        state.add_items("t", "c", items("i"))

    add(other, "a")
    do(database, operation)
    assert calls == [0, 1]
    assert ids(do(other, lambda state: state.conversation_context("t", "c", 100))) == ["i"]
    other.check()


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_connection_that_is_lost_during_a_commit(make_postgres, monkeypatch, is_kept):
    """Nobody knows whether it was kept, so that it is neither acknowledged nor done again."""
    other, database = make_postgres(), make_postgres()
    do(database, lambda state: state.add_conversation("t", "c", b"{}", []))
    commit = PostgresSession.commit

    def lose(session):
        if is_kept:
            commit(session)
        kill_sessions(other)
        commit(session)

    with monkeypatch.context() as losing:
        losing.setattr(PostgresSession, "commit", lose)
        add_one = lambda state: state.add_items("t", "c", items("i"))  # noqa: E731
        outcomes = database.transact([add_one, add_one])
    for _, error in outcomes:
        assert isinstance(error, StateFailed)
        assert "may be kept or not" in str(error)
    found = do(database, lambda state: state.conversation_context("t", "c", 100))
    assert ids(found) == (["i", "i"] if is_kept else [])
    database.check()


def test_who_is_in_the_way_is_waited_for(make_postgres):
    """Two transactions that wait for each other: one is undone, and done again."""
    one, two = make_postgres(), make_postgres()
    for id in "ab":
        do(one, lambda state, id=id: state.add_conversation("t", id, b"{}", []))
    both = threading.Barrier(2)

    def append(database, first, second):
        calls = []

        def operation(state):
            state.add_items("t", first, items(f"{first}{second}"))
            if not calls:
                calls.append(1)
                both.wait(10)
            state.add_items("t", second, items(f"{first}{second}"))

        do(database, operation)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(append, (one, two), "ab", "ba"))
    for id in "ab":
        found = do(one, lambda state, id=id: state.conversation_context("t", id, 1000))
        assert sorted(ids(found)) == ["ab", "ba"]
    one.check()


def test_an_id_that_another_adds_at_the_same_time(make_postgres):
    one, two = make_postgres(), make_postgres()
    looked = threading.Barrier(2)

    def replace(database, body):
        calls = []

        def operation(state):
            if not calls:
                calls.append(1)
                assert state.find_response("t", "r") is None
                looked.wait(10)
            state.add_response("t", StoredResponse("r", body, items(body.decode())), None)

        do(database, operation)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(replace, (one, two), (b"one", b"two")))
    found = find(one, "r")
    assert ids(context(one, "r")) == [found.body.decode()]
    one.check()


def test_what_fails_is_told_and_spoils_nothing(make_postgres):
    database = make_postgres()
    reader = make_postgres(only_reads=True)
    do(database, lambda state: state.add_conversation("t", "c", b"{}", []))
    page = Page(1, True, after="none")
    outcomes = reader.transact(
        [
            lambda state: state.list_items("t", "c", page),
            lambda state: state.find_conversation("t", "c"),
        ]
    )
    assert [type(error) for _, error in outcomes] == [UnknownCursor, type(None)]
    [(_, error)] = reader.transact([lambda state: state.delete_conversation("t", "c")])
    assert isinstance(error, StateFailed)
    assert "read-only transaction" in str(error)
    [(_, error)] = database.transact([lambda state: state.add_conversation("t", "c", b"{}", [])])
    assert isinstance(error, StateFailed)


def test_one_server_at_a_time_evicts(make_postgres, postgres, clock):
    bounds = UNBOUNDED._replace(max_count=1)
    database = make_postgres(bounds)
    for id in "abc":
        add(database, id)
        clock.now += 1
    with psycopg.connect(**postgres.connection_parameters()) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (EVICTION_LOCK,))
        assert not database.evict()
        assert 0 < database.keep_house() <= 30
        assert database.totals.num_objects == 3
    while not database.keep_house():
        continue
    assert (database.totals.num_objects, find(database, "c") is None) == (1, False)
    database.check()


def test_what_somebody_changes_is_not_evicted(make_postgres, postgres, clock):
    database = make_postgres(UNBOUNDED._replace(max_count=1))
    for id in "abc":
        add(database, id)
        clock.now += 1
    with psycopg.connect(**postgres.connection_parameters()) as other:
        other.execute("SELECT 1 FROM objects WHERE id = 'a' FOR UPDATE")
        while not database.keep_house():
            continue
        assert [find(database, id) is not None for id in "abc"] == [True, False, False]
    database.check()


def test_it_says_why_it_cannot_be_had(make_postgres, postgres):
    link = DatabaseLink(postgres)
    database = PostgresDatabase(link, UNBOUNDED, lambda: 0.0)
    link.trouble = "no luck"
    [(_, error)] = database.transact([lambda state: state.find_response("t", "a")])
    assert str(error) == "the state cannot be had: its database is gone"
    assert (database.trouble, database.is_on_disk) == ("responses are not stored: no luck", False)
    assert database.keep_house() >= 0
    assert (database.trouble, database.is_on_disk) == ("", True), "it has tried again"
    database.close()


def test_a_text_that_postgresql_does_not_have(make_postgres):
    database = make_postgres()
    add(database, "a")
    assert find(database, "a\0") is None
    assert do(database, lambda state: state.find_items("t", ["a-in\0", "a-in"])).keys() == {"a-in"}
    page = Page(1, True, after="\0")
    with pytest.raises(UnknownCursor):
        do(database, lambda state: state.list_input("t", "a", page))


def test_a_failure_quotes_nothing_that_is_kept(make_postgres):
    database = make_postgres()

    def collide(state):
        for _ in range(2):
            state._tables.execute("INSERT INTO state_version VALUES (1), (2)")
            state._tables.execute("CREATE UNIQUE INDEX one ON state_version (version)")

    [(_, error)] = database.transact([collide])
    assert isinstance(error, StateFailed)
    assert "Key (" not in str(error)
