"""Rows of items: pages of them, and their order."""

from __future__ import annotations

import pytest

from fastovms.state.store import Page, StoredItem, StoredResponse, UnknownCursor
from tests.state.transactions import add, context, do, ids, items


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
def test_pages(make_database, page, expected, has_more):
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


def test_a_page_after_nothing(make_database):
    database = make_database()
    add(database, "a")
    page = Page(1, True, after="a-out")
    with pytest.raises(UnknownCursor):
        do(database, lambda state: state.list_input("t", "a", page))
    assert do(database, lambda state: state.list_input("t", "b", page)) is None


@pytest.mark.parametrize("ascending", [True, False])
def test_pages_of_items_with_one_id_have_an_end(make_database, ascending):
    database = make_database()
    some = [StoredItem(id, body) for id, body in (("x", b"0"), ("x", b"1"), ("y", b"2"))]
    do(database, lambda state: state.add_conversation("t", "c", b"{}", some))
    page = Page(1, ascending, "x")
    found = do(database, lambda state: state.list_items("t", "c", page))
    assert found == ([some[2]] if ascending else [], False)


def test_the_items_of_a_chain_that_is_longer_than_a_statement(make_database):
    database = make_database()
    previous = None
    for number in range(600):
        add(database, str(number), previous)
        previous = str(number)
    whole = context(database, previous)
    assert ids(whole) == [f"{number}-{side}" for number in range(600) for side in ("in", "out")]
    assert (whole.is_whole, whole.missing_id) == (True, None)
    some = context(database, previous, max_bytes=500 * 2 * len(whole.items[-1].body))
    assert ids(some) == ids(whole)[-len(some.items) :]
    assert not some.is_whole
    assert 1000 <= len(some.items) < 1200


def test_more_items_than_a_statement_has_room_for(make_database):
    database = make_database()
    many = items(*map(str, range(250)))
    do(database, lambda state: state.add_conversation("t", "c", b"{}", many[:120]))
    do(database, lambda state: state.add_items("t", "c", many[120:]))
    found = do(database, lambda state: state.conversation_context("t", "c", 10**6))
    assert found.items == many
    database.check()
