"""Tests of `fastovms/state/sqlite/database.py`."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError, StateFailed
from fastovms.state.sqlite.database import (
    StateConnection,
    primary_code,
)
from fastovms.state.store import ResponseProgress, StoredResponse
from fastovms.state.tables import Tables
from tests.state.conftest import UNBOUNDED
from tests.state.sqlite.test_location import open_at
from tests.state.transactions import add, context, do, find, ids

# What SQLite says of a damaged file is a fault of SQLite's, whatever bytes it quotes.


NAME = "objects_of_the_test"
NO_TEXT = b"\xc4\x41" * (len(NAME) // 2) + b"\xff"


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A database in whose schema the name of a table is no UTF-8."""
    path = tmp_path / "state.db"
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE {NAME} (key)")
    connection.commit()
    connection.close()
    path.write_bytes(path.read_bytes().replace(NAME.encode(), NO_TEXT, 1))
    return path


@pytest.mark.parametrize("method", ["execute", "executescript"])
def test_error_message_that_is_not_utf8_is_a_corrupt_file(damaged: Path, method: str) -> None:
    plain = sqlite3.connect(damaged)
    with pytest.raises(UnicodeDecodeError):
        getattr(plain, method)("SELECT * FROM other")
    plain.close()
    connection = sqlite3.connect(damaged, factory=StateConnection)
    with pytest.raises(sqlite3.DatabaseError, match=r"\\xc4A") as caught:
        getattr(connection, method)("SELECT * FROM other")
    assert primary_code(caught.value) == sqlite3.SQLITE_CORRUPT
    connection.close()


@pytest.mark.parametrize(
    ("version", "advice"),
    [(3, "convert it with fastovms 0.2"), (99, "it is from a later fastovms")],
)
async def test_file_of_another_version_is_refused(tmp_path, version, advice):
    await open_at(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    message = f"the database has the format {version}, not 4: {advice}"
    with pytest.raises(ConfigurationError, match=message):
        open_at(tmp_path)


# What a process leaves behind, and what a disk has no room for.


def test_response_left_running_is_interrupted_at_the_next_start(make_database, tmp_path):
    path = str(tmp_path / "state.db")
    add(make_database(path=path), "a", progress=ResponseProgress.RUNNING)
    assert find(make_database(path=path), "a").progress is ResponseProgress.INTERRUPTED


def test_failed_eviction_leaves_no_open_transaction(make_database, monkeypatch):
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


def test_full_disk_fails_only_the_operation_without_room(make_database, tmp_path):
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


def test_reads_work_on_a_disk_that_cannot_be_written(make_database, tmp_path, clock):
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
    assert database.do_maintenance() > 0
    assert database.seconds_to_expiry() == 1e9
    database.check()
