"""Rows of one state become rows of another, in any pair of databases."""

from __future__ import annotations

import pytest

from fastovms.state.store import ResponseProgress, StoredResponse
from fastovms.state.transfer.row_copy import EVENTS, ITEMS, OBJECTS, PAGE, RowTarget, TableRows
from tests.state.transactions import add, context, do, find, ids, items


def test_pages_have_all_rows_in_order(make_database):
    database = make_database()
    for number in range(PAGE + 5):
        add(database, str(number))
    with database.snapshot() as tables:
        source = TableRows(tables)
        pages = list(source.pages())
        assert source.num_rows() == 3 * (PAGE + 5)
    assert [(form, len(rows)) for form, rows in pages] == [
        (OBJECTS, PAGE), (OBJECTS, 5), (ITEMS, PAGE), (ITEMS, PAGE), (ITEMS, 10),
    ]  # fmt: skip
    names = [row[3] for form, rows in pages if form is ITEMS for row in rows]
    assert names == [f"{number}-{side}" for number in range(PAGE + 5) for side in ("in", "out")]


def test_what_is_there_already_stays(make_sqlite, make_database):
    source, target = make_sqlite(), make_database()
    add(source, "a")
    add(source, "b", "a", progress=ResponseProgress.RUNNING)
    here = StoredResponse("a", b'{"here":1}', items("here"))
    do(target, lambda state: state.add_response("t", here, None))
    with source.snapshot() as tables, target.transaction() as to:
        rows = RowTarget(to)
        for page in TableRows(tables).pages():
            rows.add(*page)
    assert (rows.num_added, rows.num_left) == (1, 1)
    assert find(target, "a").body == b'{"here":1}'
    assert ids(context(target, "b")) == ["here", "b-in", "b-out"]
    assert find(target, "b").progress is ResponseProgress.INTERRUPTED
    target.check()


def test_nothing_is_added_where_anything_fails(make_sqlite, make_database):
    source, target = make_sqlite(), make_database()
    add(source, "a")
    with source.snapshot() as tables:
        [(_, objects), (_, some)] = TableRows(tables).pages()

    def copy() -> None:
        with target.transaction() as to:
            rows = RowTarget(to)
            rows.add(OBJECTS, objects)
            rows.add(ITEMS, [*some, some[0]])

    with pytest.raises(Exception, match=r"(?i)unique"):
        copy()
    assert find(target, "a") is None
    target.check()


def test_what_belongs_to_nobody_is_left_out(make_database):
    database = make_database()
    with database.transaction() as tables:
        RowTarget(tables).add(EVENTS, [(7, 0, b"data")])
    database.check()
