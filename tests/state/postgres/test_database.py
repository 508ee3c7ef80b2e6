"""Tests of `fastovms/parts/postgres/database.py`."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from fastovms.errors import ConfigurationError, StateFailed
from fastovms.parts.postgres.database import EVICTION_LOCK, DatabaseLink, PostgresDatabase, open_url
from fastovms.parts.postgres.schema import open_session
from fastovms.parts.postgres.server_address import ServerAddress
from fastovms.state.database import DatabaseUnavailable
from fastovms.state.store import Page, StoredResponse, UnknownCursor
from tests.state.conftest import UNBOUNDED, Clock
from tests.state.transactions import add, context, do, find, ids, items

# Connections to a server that goes and comes back.


@pytest.fixture
def nowhere():
    """The address of a port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield ServerAddress({"host": "127.0.0.1", "port": str(taken.getsockname()[1])})


def test_attempts_to_connect_become_rare(nowhere, caplog):
    clock = Clock()
    link = DatabaseLink(nowhere, clock)
    with pytest.raises(DatabaseUnavailable, match="Connection refused"):
        link.connect()
    delays = []
    for _ in range(9):
        delays.append(link.seconds_left())
        assert link.try_again() is None, "it is not due"
        clock.now += delays[-1]
        with pytest.raises(DatabaseUnavailable, match="Connection refused"):
            link.connect()
        assert link.seconds_left() == 0, "who only asks makes no attempt"
        assert link.try_again() is None
    assert 0.1 < delays[0] <= 0.25
    assert 1 <= delays[-1] <= 2
    assert caplog.text.count("responses are not stored") == 1, (
        "the same reason is not told again and again"
    )
    assert link.num_connects == 0


def test_reachable_database_is_used_again(postgres, nowhere, caplog):
    clock = Clock()
    link = DatabaseLink(nowhere, clock)
    with pytest.raises(DatabaseUnavailable):
        link.connect()
    link._address = postgres
    clock.now += 1
    session = link.try_again()
    assert session is not None
    session.close()
    assert (link.trouble, link.num_connects) == ("", 1)
    assert "is reachable again" in caplog.text
    link.connect().close()


def test_database_without_room_for_tables_is_unreachable(postgres):
    link = DatabaseLink(postgres)
    session = link.connect()
    session.execute("DROP TABLE state_version")
    session.close()
    with pytest.raises(DatabaseUnavailable, match='"objects" already exists'):
        link.connect()


@pytest.mark.slow
def test_faults_are_yielded_as_they_are_found(postgres):
    with open_url(postgres, UNBOUNDED) as state:
        for number in range(102):
            add(state, f"r{number:03}")
        with state.transaction() as tables:
            tables.execute("UPDATE objects SET size = size + 1")
        faults = state.faults()
        assert next(faults).startswith("r000: its size")
        assert len(list(faults)) == 102, "the other sizes, and the totals"


def test_database_without_a_state_is_left_unchanged(postgres, caplog):
    for _ in range(2):
        with (
            pytest.raises(ConfigurationError, match=r"^postgresql://.* has no stored state"),
            open_url(postgres, UNBOUNDED, must_exist=True),
        ):
            pass
    assert caplog.text == ""
    with open_url(postgres, UNBOUNDED) as state, state.snapshot() as tables:
        assert tables.execute("SHOW statement_timeout").fetchone() == ("1h",)
    with open_url(postgres, UNBOUNDED, must_exist=True) as state:
        assert list(state.faults()) == []


def test_reading_leaves_older_tables_as_they_are(postgres):
    with open_url(postgres, UNBOUNDED):
        pass
    session = open_session(postgres.connection_parameters())
    session.execute("UPDATE state_version SET version = 3")
    with (
        pytest.raises(
            StateFailed,
            match=r"the database has the format 3, not 4: convert it with fastovms 0\.2",
        ),
        open_url(postgres, UNBOUNDED, must_exist=True),
    ):
        pass
    assert session.execute("SELECT version FROM state_version").fetchall() == [(3,)]
    session.close()


def test_database_error_becomes_state_failed(postgres):
    with pytest.raises(StateFailed, match="no luck"), open_url(postgres, UNBOUNDED):
        raise psycopg.OperationalError("no\nluck")


# Transactions on a database that others change, and a connection that may be lost.


def kill_sessions(database: PostgresDatabase) -> None:
    """Ends the sessions of all others on the server."""
    session = database.connect().session
    session.execute(
        "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


@pytest.mark.slow
@pytest.mark.parametrize("only_reads", [False, True])
def test_lost_connection_is_restored_at_the_next_operation(make_postgres, only_reads):
    other = make_postgres()
    add(other, "a")
    database = make_postgres(only_reads=only_reads)
    assert find(database, "a") is not None
    kill_sessions(other)
    assert find(database, "a") is not None
    assert database.is_on_disk


@pytest.mark.slow
def test_deadlocked_transaction_is_repeated(make_postgres):
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
                both.wait(60)
            state.add_items("t", second, items(f"{first}{second}"))

        do(database, operation)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(append, (one, two), "ab", "ba"))
    for id in "ab":
        found = do(one, lambda state, id=id: state.conversation_context("t", id, 1000))
        assert sorted(ids(found)) == ["ab", "ba"]
    one.check()


def test_id_that_two_servers_add_at_once_is_stored_once(make_postgres):
    one, two = make_postgres(), make_postgres()
    looked = threading.Barrier(2)

    def replace(database, body):
        calls = []

        def operation(state):
            if not calls:
                calls.append(1)
                assert state.find_response("t", "r") is None
                looked.wait(60)
            state.add_response("t", StoredResponse("r", body, items(body.decode())), None)

        do(database, operation)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(replace, (one, two), (b"one", b"two")))
    found = find(one, "r")
    assert ids(context(one, "r")) == [found.body.decode()]
    one.check()


def test_failed_operation_does_not_affect_others(make_postgres):
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


def test_one_server_evicts_at_a_time(make_postgres, postgres, clock):
    bounds = UNBOUNDED._replace(max_count=1)
    database = make_postgres(bounds)
    for id in "abc":
        add(database, id)
        clock.now += 1
    with psycopg.connect(**postgres.connection_parameters()) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (EVICTION_LOCK,))
        assert not database.evict()
        assert 0 < database.do_maintenance() <= 30
        assert database.totals.num_objects == 3
    while not database.do_maintenance():
        continue
    assert (database.totals.num_objects, find(database, "c") is None) == (1, False)
    database.check()


def test_locked_object_is_not_evicted(make_postgres, postgres, clock):
    database = make_postgres(UNBOUNDED._replace(max_count=1))
    for id in "abc":
        add(database, id)
        clock.now += 1
    with psycopg.connect(**postgres.connection_parameters()) as other:
        other.execute("SELECT 1 FROM objects WHERE id = 'a' FOR UPDATE")
        while not database.do_maintenance():
            continue
        assert [find(database, id) is not None for id in "abc"] == [True, False, False]
    database.check()


def test_unavailable_database_has_a_reason_and_recovers(make_postgres, postgres):
    link = DatabaseLink(postgres)
    database = PostgresDatabase(link, UNBOUNDED, lambda: 0.0)
    link.trouble = "no luck"
    [(_, error)] = database.transact([lambda state: state.find_response("t", "a")])
    assert str(error) == "the state is not available: the connection to its database is lost"
    assert (database.trouble, database.is_on_disk) == ("responses are not stored: no luck", False)
    assert database.do_maintenance() >= 0
    assert (database.trouble, database.is_on_disk) == ("", True), "it has tried again"
    database.close()


def test_id_with_nul_is_not_found(make_postgres):
    database = make_postgres()
    add(database, "a")
    assert find(database, "a\0") is None
    assert do(database, lambda state: state.find_items("t", ["a-in\0", "a-in"])).keys() == {"a-in"}
    page = Page(1, True, after="\0")
    with pytest.raises(UnknownCursor):
        do(database, lambda state: state.list_input("t", "a", page))


def test_error_of_a_failed_operation_has_no_stored_values(make_postgres):
    database = make_postgres()

    def collide(state):
        for _ in range(2):
            state._tables.execute("INSERT INTO state_version VALUES (1), (2)")
            state._tables.execute("CREATE UNIQUE INDEX one ON state_version (version)")

    [(_, error)] = database.transact([collide])
    assert isinstance(error, StateFailed)
    assert "Key (" not in str(error)
