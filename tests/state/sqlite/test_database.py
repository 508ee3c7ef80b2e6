"""What a process leaves behind, and what a disk has no room for."""

from __future__ import annotations

import sqlite3

import pytest

from fastovms.errors import StateFailed
from fastovms.state.store import ResponseProgress, StoredResponse
from fastovms.state.tables import Tables
from tests.state.conftest import UNBOUNDED
from tests.state.transactions import add, context, do, find, ids


def test_a_response_that_a_process_left_running_is_interrupted(make_database, tmp_path):
    path = str(tmp_path / "state.db")
    add(make_database(path=path), "a", progress=ResponseProgress.RUNNING)
    assert find(make_database(path=path), "a").progress is ResponseProgress.INTERRUPTED


def test_an_eviction_that_fails_leaves_no_transaction_open(make_database, monkeypatch):
    database = make_database(UNBOUNDED._replace(max_count=1))
    for id in ("a", "b"):
        add(database, id)
    with monkeypatch.context() as failing:
        failing.setattr(Tables, "delete_all", lambda *_: [][0])
        with pytest.raises(IndexError):
            database.evict()
    add(database, "c")
    while database.evict():
        continue
    assert [find(database, id) is not None for id in "abc"] == [False, False, True]
    database.check()


def test_a_full_disk_fails_what_it_has_no_room_for(make_database, tmp_path):
    database = make_database(path=str(tmp_path / "state.db"))
    add(database, "a")
    connection: sqlite3.Connection = database._connection
    connection.execute("PRAGMA max_page_count = 20")
    big = StoredResponse("big", b"x" * 1_000_000)
    outcomes = database.transact(
        [
            lambda state: state.add_conversation("t", "c", b"{}", []),
            lambda state: state.add_response("t", big, None),
            lambda state: state.find_response("t", "a"),
        ]
    )
    assert [type(error) for _, error in outcomes] == [type(None), StateFailed, type(None)]
    assert outcomes[-1].result is not None
    assert do(database, lambda state: state.find_conversation("t", "c")) == b"{}"
    assert find(database, "big") is None
    connection.execute("PRAGMA max_page_count = 100000")
    do(database, lambda state: state.add_response("t", big, None))
    database.check()


def test_what_is_read_needs_no_room_on_the_disk(make_database, tmp_path, clock):
    database = make_database(path=str(tmp_path / "state.db"))
    add(database, "a")
    add(database, "b", "a")
    clock.now += 1000
    connection: sqlite3.Connection = database._connection
    connection.execute("PRAGMA query_only = ON")
    assert ids(context(database, "b")) == ["a-in", "a-out", "b-in", "b-out"]
    assert find(database, "a") is not None
    with pytest.raises(StateFailed):
        do(database, lambda state: state.delete_response("t", "a"))
    connection.execute("PRAGMA query_only = OFF")
    assert database.seconds_to_expiry() == 1e9 - 1000
    assert find(database, "a") is not None
    assert find(database, "b") is not None
    assert database.seconds_to_expiry() == 1e9
    database.check()
