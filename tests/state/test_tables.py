"""Tests of `fastovms/state/tables.py`."""

from __future__ import annotations

import sqlite3

import pytest

from fastovms.errors import StateFailed, TooLarge
from fastovms.state import tables
from fastovms.state.store import (
    EventPack,
    Page,
    ResponseProgress,
    StoredItem,
    StoredResponse,
    UnknownCursor,
)
from tests.state.conftest import UNBOUNDED
from tests.state.transactions import add, context, do, ids, items

READS = {
    "response": lambda state: state.find_response("t", "r"),
    "output": lambda state: state.find_response("t", "r2"),
    "events": lambda state: state.find_events("t", "r", 0),
    "events so far": lambda state: state.find_events("t", "r3", 0),
    "chain": lambda state: state.response_context("t", "r2", 1000),
    "conversation": lambda state: state.find_conversation("t", "c"),
    "items": lambda state: state.conversation_context("t", "c", 1000),
    "item": lambda state: state.find_item("t", "c", "i"),
    "items by id": lambda state: state.find_items("t", ["i"]),
}


@pytest.mark.parametrize("read", READS)
def test_data_that_a_disk_has_changed_is_refused(make_sqlite, tmp_path, read):
    path = str(tmp_path / "state.db")
    database = make_sqlite(path=path)
    item = StoredItem("i", b"text")
    response = StoredResponse("r", b"{}", [], [], events=b"events")
    do(database, lambda state: state.add_response("t", response, None))
    response = StoredResponse("r2", b"{}", [], [item])
    do(database, lambda state: state.add_response("t", response, None))
    running = StoredResponse("r3", b"{}", progress=ResponseProgress.RUNNING)
    do(database, lambda state: state.add_response("t", running, None))
    do(database, lambda state: state.add_events("t", "r3", EventPack(0, b"events")))
    do(database, lambda state: state.add_conversation("t", "c", b"{}", [item]))
    do(database, READS[read])
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE objects SET body = x'7b7d7b7d7b', events = x'00112233445566'")
    connection.execute("UPDATE items SET body = x'00112233445566'")
    connection.execute("UPDATE event_packs SET data = x'00112233445566'")
    connection.close()
    with pytest.raises(StateFailed, match="is corrupt"):
        do(database, READS[read])
    assert do(database, lambda state: state.delete_response("t", "r")), "it can still be deleted"
    assert (tmp_path / "state.db").exists(), "others may be as they were"


# Rows of items: pages of them, and their order.


@pytest.mark.parametrize(
    ("page", "expected", "has_more"),
    [
        (Page(2, True), ["0", "1"], True),
        (Page(2, False), ["4", "3"], True),
        (Page(5, True), ["0", "1", "2", "3", "4"], False),
        (Page(2, True, after="2"), ["3", "4"], False),
        (Page(2, False, after="2"), ["1", "0"], False),
        (Page(1, True, after="4"), [], False),
        (Page(9, False, after="4"), ["3", "2", "1", "0"], False),
    ],
)
def test_page_lists_items_in_order_after_a_cursor(make_database, page, expected, has_more):
    database = make_database()
    given = items("0", "1", "2", "3", "4")
    response = StoredResponse("r", b"{}", input=given, output=items("out"))
    do(database, lambda state: state.add_response("t", response, None))
    do(database, lambda state: state.add_conversation("t", "c", b"{}", given))
    for listing in (
        lambda state: state.list_input("t", "r", page),
        lambda state: state.list_items("t", "c", page),
    ):
        found = do(database, listing)
        assert (ids(found), found.has_more) == (expected, has_more)


def test_page_after_an_unknown_item_is_refused(make_database):
    database = make_database()
    add(database, "a")
    page = Page(1, True, after="a-out")
    with pytest.raises(UnknownCursor):
        do(database, lambda state: state.list_input("t", "a", page))
    assert do(database, lambda state: state.list_input("t", "b", page)) is None


@pytest.mark.parametrize("ascending", [True, False])
def test_pages_of_items_with_the_same_id_have_an_end(make_database, ascending):
    database = make_database()
    some = [StoredItem(id, body) for id, body in (("x", b"0"), ("x", b"1"), ("y", b"2"))]
    do(database, lambda state: state.add_conversation("t", "c", b"{}", some))
    page = Page(1, ascending, "x")
    found = do(database, lambda state: state.list_items("t", "c", page))
    assert found == ([some[2]] if ascending else [], False)


def test_items_of_a_chain_are_read_in_several_statements(make_database, monkeypatch):
    monkeypatch.setattr(tables, "MAX_VARIABLES", 100)  # of 49 responses
    database = make_database()
    previous = None
    for number in range(120):
        previous = add(database, str(number), previous).id
    whole = context(database, previous)
    assert ids(whole) == [f"{number}-{side}" for number in range(120) for side in ("in", "out")]
    assert (whole.is_whole, whole.missing_id) == (True, None)
    some = context(database, previous, max_bytes=100 * 2 * len(whole.items[-1].body))
    assert ids(some) == ids(whole)[-len(some.items) :]
    assert not some.is_whole
    assert 200 <= len(some.items) < 220


def test_more_items_than_a_statement_holds_are_added_in_order(make_database):
    database = make_database()
    many = items(*map(str, range(250)))
    do(database, lambda state: state.add_conversation("t", "c", b"{}", many[:120]))
    do(database, lambda state: state.add_items("t", "c", many[120:]))
    found = do(database, lambda state: state.conversation_context("t", "c", 10**6))
    assert found.items == many
    database.check()


# Rows of objects: how large they may be.


TEXT = b"x" * 1000


@pytest.mark.parametrize(
    "operation",
    [
        lambda state: state.add_response("t", StoredResponse("b", TEXT), None),
        lambda state: state.add_response("t", StoredResponse("b", b"{}", events=TEXT), None),
        lambda state: state.add_response(
            "t", StoredResponse("b", b"{}", [StoredItem("i", TEXT)]), None
        ),
        lambda state: state.add_conversation("t", "d", b"{}", [StoredItem("i", TEXT)]),
        lambda state: state.add_items("t", "c", [StoredItem("i", TEXT)]),
        lambda state: state.update_conversation("t", "c", TEXT),
    ],
)
def test_object_above_max_bytes_is_refused_without_eviction(make_database, operation):
    database = make_database(UNBOUNDED._replace(max_bytes=1000))
    do(database, lambda state: state.add_conversation("t", "c", b"{}", []))
    totals = database.totals
    with pytest.raises(TooLarge, match="1000"):
        do(database, operation)
    assert database.evict() is False
    assert database.totals == totals
    database.check()
