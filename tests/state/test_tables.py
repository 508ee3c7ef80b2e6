"""Rows of objects and items: pages, sizes, and how much there is of all."""

from __future__ import annotations

import pytest

from fastovms.errors import TooLarge
from fastovms.state.store import (
    Page,
    StoredItem,
    StoredResponse,
    UnknownCursor,
)
from tests.state.conftest import UNBOUNDED
from tests.state.transactions import add, do, ids, items


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
def test_what_is_larger_than_everything_may_be_drives_nothing_out(make_database, operation):
    database = make_database(UNBOUNDED._replace(max_bytes=1000))
    do(database, lambda state: state.add_conversation("t", "c", b"{}", []))
    totals = database.totals
    with pytest.raises(TooLarge, match="1000"):
        do(database, operation)
    assert database.evict() is False
    assert database.totals == totals
    database.check()
