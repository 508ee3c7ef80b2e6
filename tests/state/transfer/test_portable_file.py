from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import chain

import orjson
import pytest

from fastovms.errors import ConfigurationError
from fastovms.state.tables import VERSION
from fastovms.state.transfer.portable_file import PortableFile, write_portable
from fastovms.state.transfer.row_copy import EVENTS, ITEMS, JOBS, OBJECTS, PAGE, Page

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


def test_rows_come_back_as_they_were(tmp_path):
    path, counted = tmp_path / "file", []
    write_portable(path, ROWS, counted.append)
    assert sum(counted) == ROWS.num_rows()
    pages = read(path)
    assert [len(rows) for _, rows in pages] == [1, PAGE, 1, 1, 1]
    rows = [(form, tuple(row)) for form, some in pages for row in some]
    expected = chain.from_iterable([(form, row) for row in some] for form, some in ROWS.pages())
    assert rows == list(expected)


def test_a_file_of_version_3_says_nothing_of_what_the_model_has_said(tmp_path):
    path = tmp_path / "file"
    write_portable(path, Rows((OBJECTS, [OBJECT]), (EVENTS, [EVENT[:3]])), lambda count: None)
    header, *lines, _ = path.read_bytes().splitlines(keepends=True)
    lines.insert(0, header.replace(b'"version":4', b'"version":3'))
    end = orjson.dumps({"end": 2, "crc": zlib.crc32(b"".join(lines))}) + b"\n"
    path.write_bytes(b"".join([*lines, end]))
    assert [list(map(tuple, rows)) for _, rows in read(path)] == [[OBJECT], [(*EVENT[:3], None)]]


def test_a_file_that_is_not_whole_has_no_name(tmp_path):
    class Failing(Rows):
        def pages(self) -> Iterator[Page]:
            yield OBJECTS, [OBJECT]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_portable(tmp_path / "file", Failing(), lambda count: None)
    assert list(tmp_path.iterdir()) == []


def changed(lines: list[bytes], number: int, line: bytes) -> list[bytes]:
    return [*lines[:number], line, *lines[number:][1:]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [], "is no exported state"),
        (lambda lines: [b"[]\n"], "is no exported state"),
        (lambda lines: [b"\xff\n", *lines], "is no exported state"),
        (lambda lines: [lines[0].replace(b'"version":4', b'"version":9')], "is 9, not 4"),
        (lambda lines: lines[:-1], "was cut off"),
        (lambda lines: [*lines[:2], *lines[3:]], "was cut off"),
        (lambda lines: changed(lines, 1, lines[1].replace(b'"r"', b'"x"')), "was cut off"),
        (lambda lines: changed(lines, 1, lines[1][:-20] + b"\n"), "is damaged"),
        (lambda lines: changed(lines, 1, b'["other",1]\n'), "is damaged"),
        (lambda lines: changed(lines, 1, b'["items",1]\n'), "is damaged"),
        (lambda lines: changed(lines, 1, b"7\n"), "is damaged"),
        (lambda lines: changed(lines, 1, b"[]\n"), "is damaged"),
        (lambda lines: changed(lines, 103, b'["events",{"a":1},0,"gA=="]\n'), "is damaged"),
        (lambda lines: changed(lines, 103, b'["events",true,0,"gA=="]\n'), "is damaged"),
        (lambda lines: changed(lines, 103, b'["events",9223372036854775808,0,""]\n'), "is damaged"),
        (lambda lines: changed(lines, 103, b'["events",1,0,7]\n'), "is damaged"),
        (lambda lines: changed(lines, 0, b'{"format":"fastovms-state"}\n'), "is None, not 4"),
        (lambda lines: [lines[0].replace(b'"num_rows":103', b'"num_rows":"x"')], "is damaged"),
        (lambda lines: [lines[0].replace(b'"num_rows"', b'"rows"')], "is damaged"),
    ],
)
def test_a_file_that_is_none(tmp_path, change, message):
    path = tmp_path / "file"
    write_portable(path, ROWS, lambda count: None)
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(ConfigurationError, match=message):
        read(path)


def test_the_first_line_says_what_it_is(tmp_path):
    write_portable(tmp_path / "file", Rows(), lambda count: None)
    first = (tmp_path / "file").read_bytes().splitlines()[0]
    header = {"format": "fastovms-state", "version": VERSION, "num_rows": 0}
    assert orjson.loads(first) == header
