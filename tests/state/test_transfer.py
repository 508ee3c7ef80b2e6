"""Tests of `fastovms/state/transfer.py`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import chain

import pytest

from fastovms.errors import ConfigurationError, StateFailed
from fastovms.parts.state_transfer import (
    EVENTS,
    ITEMS,
    JOBS,
    OBJECTS,
    PAGE,
    Page,
    PortableFile,
    RowTarget,
    TableRows,
    copy_rows,
    corrupt_rows,
    export,
    open_state,
    rows_in_file,
    rows_of,
    write_portable,
)
from fastovms.state.store import ResponseProgress, StoredResponse
from tests.state.transactions import add, context, do, find, ids, items

OBJECT = (1, "t", 0, "r", 1, None, b"body", None, 300, 1.5)
EVENT = (1, 0, b"\x80", b"\x81")
ITEM = (1, 0, 0, "\u20ac\ud7ff", b"\xff\0")


class Rows:
    """Rows of a test's."""

    def __init__(self, *pages: Page) -> None:
        self._pages = pages

    def num_rows(self) -> int:
        return sum(len(rows) for _, rows in self._pages)

    def pages(self) -> Iterator[Page]:
        yield from self._pages


ROWS = Rows(
    (OBJECTS, [OBJECT]), (ITEMS, [ITEM] * (PAGE + 1)), (EVENTS, [EVENT]), (JOBS, [(1, b"job")])
)


def read(path) -> list[Page]:
    with path.open("rb") as file:
        return list(PortableFile(file).pages())


def test_exported_rows_are_read_back(tmp_path):
    path, counted = tmp_path / "file", []
    write_portable(path, ROWS, counted.append)
    assert sum(counted) == ROWS.num_rows()
    pages = read(path)
    assert [len(rows) for _, rows in pages] == [1, PAGE, 1, 1, 1]
    rows = [(form, tuple(row)) for form, some in pages for row in some]
    expected = chain.from_iterable([(form, row) for row in some] for form, some in ROWS.pages())
    assert rows == list(expected)


def test_export_that_fails_leaves_no_file(tmp_path):
    class Failing(Rows):
        def pages(self) -> Iterator[Page]:
            yield OBJECTS, [OBJECT]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_portable(tmp_path / "file", Failing(), lambda count: None)
    assert list(tmp_path.iterdir()) == []


HEADER = b'{"format":"fastovms-state","version":4,"num_rows":104}\n'


@pytest.mark.parametrize(
    ("first", "lines", "message"),
    [
        (0, [], "is not an exported state"),
        (0, [b"[]\n"], "is not an exported state"),
        (0, [b"\xff\n"], "is not an exported state"),
        (
            0,
            [HEADER.replace(b":4,", b":3,")],
            "has the format 3, not 4: convert it with fastovms 0.2",
        ),
        (0, [b'{"format":"fastovms-state"}\n'], "format None, not 4"),
        (0, [HEADER.replace(b"104", b'"x"')], "is corrupt"),
        (0, [HEADER.replace(b"num_rows", b"rows")], "is corrupt"),
        (-1, [], "was cut off"),
        (1, [b""], "was cut off"),
        (1, [b'["objects",1]\n'], "is corrupt"),
        (1, [b'["other",1]\n'], "is corrupt"),
        (1, [b"7\n"], "is corrupt"),
        (1, [b"[]\n"], "is corrupt"),
        (103, [b'["events",{"a":1},0,"gA=="]\n'], "is corrupt"),
        (103, [b'["events",true,0,"gA=="]\n'], "is corrupt"),
        (103, [b'["events",9223372036854775808,0,""]\n'], "is corrupt"),
        (103, [b'["events",1,0,7]\n'], "is corrupt"),
    ],
)
def test_invalid_export_is_refused(tmp_path, first: int, lines: list[bytes], message: str) -> None:
    """Lines are replaced; without any, the file is cut there."""
    path = tmp_path / "file"
    write_portable(path, ROWS, lambda count: None)
    whole = path.read_bytes().splitlines(keepends=True)
    assert whole[0] == HEADER
    whole[first : first + 1 if lines else None] = lines
    path.write_bytes(b"".join(whole))
    with pytest.raises(ConfigurationError, match=message):
        read(path)


# Rows of one state become rows of another, in any pair of databases.


def test_existing_objects_are_kept_on_import(make_sqlite, make_database):
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


def test_rows_without_an_object_are_not_imported(make_database):
    database = make_database()
    with database.transaction() as tables:
        RowTarget(tables).add(EVENTS, [(7, 0, b"data")])
    database.check()


def test_directory_is_opened_only_with_a_state_and_exclusively(tmp_path):
    with (
        pytest.raises(ConfigurationError, match="has no stored state"),
        open_state(str(tmp_path), None, {}),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
    with open_state(str(tmp_path), None, {}, must_exist=False) as state:
        add(state, "a")
        with (
            pytest.raises(ConfigurationError, match="another server uses it"),
            open_state(str(tmp_path), None, {}),
        ):
            pass
    with open_state(str(tmp_path), None, {}) as state:
        assert list(state.faults()) == []


def test_database_error_while_a_place_is_open_is_a_state_failure(tmp_path):
    with (
        pytest.raises(StateFailed, match="no luck"),
        open_state(str(tmp_path), None, {}, must_exist=False),
    ):
        raise sqlite3.OperationalError("no luck")


def test_exported_rows_are_copied_into_another_database(make_sqlite, make_database, tmp_path):
    source, target, counted = make_sqlite(), make_database(), []
    add(source, "a")
    with rows_of(source) as rows:
        export(rows, tmp_path / "file", counted.append)
    with rows_in_file(tmp_path / "file") as rows:
        assert copy_rows(rows, target, counted.append) == (1, 0)
    assert sum(counted) == 6
    assert find(target, "a") == find(source, "a")
    target.check()


def test_rows_with_wrong_checksums_are_listed(make_database):
    database = make_database()
    add(database, "a")
    with rows_of(database) as rows:
        assert list(corrupt_rows(rows, lambda count: None)) == []
    with database.transaction() as tables:
        tables.execute("UPDATE objects SET body = ?", (b"other",))
        [key] = tables.execute("SELECT key FROM objects").fetchone()
    with rows_of(database) as rows:
        faults = list(corrupt_rows(rows, lambda count: None))
    assert faults == [f"objects, object {key}: body is corrupt"]


def test_unusable_files_are_refused(make_sqlite, tmp_path):
    with (
        rows_of(make_sqlite()) as rows,
        pytest.raises(ConfigurationError, match=r"cannot write .*: No such file"),
    ):
        export(rows, tmp_path / "none" / "file", lambda count: None)
    with (
        pytest.raises(ConfigurationError, match=r"cannot read .*: Is a dir"),
        rows_in_file(tmp_path),
    ):
        pass
