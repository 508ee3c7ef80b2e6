from __future__ import annotations

import sqlite3

import pytest

from fastovms.state.sqlite.database import Database
from fastovms.state.sqlite.disk_return import DiskReturn, UnusableFile
from fastovms.state.store import ResponseProgress, StoredItem, StoredResponse
from tests.state.conftest import Clock
from tests.state.transactions import add, do, items


def never() -> Database:
    raise UnusableFile("no luck")


def test_the_delays_grow_up_to_a_bound(make_database, caplog):
    clock = Clock()
    disk_return = DiskReturn(never, "no luck", clock)
    memory = make_database()
    delays = []
    for _ in range(8):
        delays.append(disk_return.seconds_left())
        clock.now += delays[-1]
        assert disk_return.seconds_left() == 0
        assert disk_return.attempt(memory) is None
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
    assert caplog.text == "", "the same reason is not told again and again"


def test_another_reason_is_told(make_database, caplog):
    disk_return = DiskReturn(never, "something else")
    assert disk_return.attempt(make_database()) is None
    assert disk_return.reason == "no luck"
    assert "no luck" in caplog.text


def test_everything_moves(make_database, tmp_path):
    disk = make_database(path=str(tmp_path / "state.db"))
    add(disk, "a")
    add(disk, "shared")
    memory = make_database()
    add(memory, "a")
    add(memory, "b", previous="a")
    do(memory, lambda state: state.delete_response("t", "a"))
    newer = StoredResponse("shared", b'{"newer":1}', input=items("new"))
    do(memory, lambda state: state.add_response("t", newer, None))
    add(memory, "running", progress=ResponseProgress.RUNNING)
    do(memory, lambda state: state.add_conversation("t", "c", b"{}", items("x", "y")))
    # The newest item of an id counts, and it is in an object that is older than the other one.
    do(memory, lambda state: state.add_conversation("t", "d", b"{}", [StoredItem("z", b"old")]))
    do(memory, lambda state: state.add_items("t", "c", [StoredItem("z", b"new")]))

    moved = DiskReturn(lambda: disk, "no luck").attempt(memory)

    assert moved is disk
    disk.check()
    assert disk.totals.num_objects == 6
    context = do(disk, lambda state: state.response_context("t", "b", 10**6))
    assert [item.id for item in context.items] == ["a-in", "a-out", "b-in", "b-out"]
    found = do(disk, lambda state: state.find_response("t", "shared"))
    assert (found.body, found.output) == (b'{"newer":1}', [])
    assert do(disk, lambda state: state.find_items("t", ["z"])) == {"z": b"new"}
    finished = StoredResponse("running", b"{}", output=items("end"))
    assert do(disk, lambda state: state.finish_response("t", finished, None))


def test_a_move_that_fails_in_an_unexpected_way(make_database, tmp_path, monkeypatch):
    """Its file is closed, and the next attempt comes later, as after any other failure."""
    closed = []

    def fail(self, other):
        raise KeyError("unexpected")

    monkeypatch.setattr(Database, "add_all", fail)
    disk = make_database(path=str(tmp_path / "state.db"))
    monkeypatch.setattr(disk, "_on_close", lambda: closed.append(disk))
    clock = Clock()
    disk_return = DiskReturn(lambda: disk, "no luck", clock)
    clock.now += 1
    assert disk_return.attempt(make_database()) is None
    assert closed == [disk]
    assert disk_return.reason == "KeyError: 'unexpected'"
    assert disk_return.seconds_left() == 2


@pytest.mark.parametrize("table", ["objects", "items"])
def test_a_disk_on_which_not_everything_has_room(make_database, tmp_path, table):
    """Nothing moves, and everything stays where it is."""
    memory = make_database()
    add(memory, "a")
    add(memory, "b")
    path = str(tmp_path / "state.db")
    disk = make_database(path=path)
    add(disk, "b")
    connection = sqlite3.connect(path)
    connection.execute(
        f"CREATE TRIGGER full BEFORE INSERT ON {table} BEGIN SELECT raise(ABORT, 'full'); END"
    )
    disk_return = DiskReturn(lambda: disk, "no luck")
    assert disk_return.attempt(memory) is None
    assert disk_return.reason == "full"
    assert memory.totals.num_objects == 2
    memory.check()
    connection.execute("DROP TRIGGER full")
    connection.close()
    disk = make_database(path=path)
    assert disk.totals.num_objects == 1
    assert do(disk, lambda state: state.find_response("t", "b")) is not None
