"""Copies the server's state between databases and portable files."""

from __future__ import annotations

import base64
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

import orjson

from fastovms.errors import ConfigurationError, StateFailed
from fastovms.parts.postgres.server_address import extra_needed, read_address
from fastovms.state.database import SqlDatabase, StateBounds
from fastovms.state.schema import VERSION, unsupported_version_text
from fastovms.state.sqlite.database import UnusableFile
from fastovms.state.sqlite.location import STATE_FILE, open_directory
from fastovms.state.store import ResponseProgress
from fastovms.state.tables import COLUMNS, MAX_VARIABLES, Tables, marks, unseal

PAGE: Final = 100
"""The number of rows that are copied at once."""


class TableSchema(NamedTuple):
    """A table whose rows are copied.

    Attributes:
        columns: the columns to copy. The first is the key of the object that the row belongs to.
        order: the columns to sort by. Items are sorted by the time they were added, which
            determines the newest item with an id.
    """

    name: str
    columns: tuple[str, ...]
    order: tuple[str, ...]


OBJECTS: Final = TableSchema("objects", ("key", *COLUMNS.split(", ")), ("key",))
ITEMS: Final = TableSchema("items", ("object", "position", "side", "id", "body"), ("rowid",))
EVENTS: Final = TableSchema(
    "event_packs", ("object", "first", "data", "outputs"), ("object", "first")
)
JOBS: Final = TableSchema("jobs", ("object", "job"), ("object",))
FORMS: Final = (OBJECTS, ITEMS, EVENTS, JOBS)
"""The tables, objects before their items and events. The owner of a running response is not
copied."""

Row = Sequence[Any]
Page = tuple[TableSchema, list[Row]]

_PROGRESS: Final = OBJECTS.columns.index("progress")
_TENANT: Final = OBJECTS.columns.index("tenant")
_SIZE: Final = OBJECTS.columns.index("size")
_NAME: Final = slice(1, 4)
"""The columns with the tenant, kind and id of an object."""


class RowSource(Protocol):
    """A source of the rows to copy."""

    def num_rows(self) -> int:
        """Returns the number of rows of all tables."""

    def pages(self) -> Iterator[Page]:
        """Yields pages of rows; the rows of objects come before those of their items."""


class TableRows:
    """Implements `RowSource` for the tables of a database, within one transaction."""

    def __init__(self, tables: Tables) -> None:
        self._execute = tables.execute

    def num_rows(self) -> int:
        counts = (self._execute(f"SELECT count(*) FROM {form.name}").fetchone() for form in FORMS)
        return sum(count for (count,) in counts)

    def pages(self) -> Iterator[Page]:
        for form in FORMS:
            last: Row = (-1,) * len(form.order)
            while rows := self._page(form, last):
                yield form, [row[len(form.order) :] for row in rows]
                last = rows[-1][: len(form.order)]

    def _page(self, form: TableSchema, last: Row) -> list[Row]:
        order = ", ".join(form.order)
        return self._execute(
            f"SELECT {order}, {', '.join(form.columns)} FROM {form.name} "
            f"WHERE ({order}) > ({marks(last)}) ORDER BY {order} LIMIT ?",
            (*last, PAGE),
        ).fetchall()


class RowTarget:
    """Adds rows to tables, within one transaction. Existing objects are not changed; `num_left`
    counts them."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._keys: dict[int, int] = {}
        self.num_added = 0
        self.num_left = 0

    def add(self, form: TableSchema, rows: Sequence[Row]) -> None:
        """Inserts rows into a table, and skips rows of objects that existed before the copy."""
        if form is OBJECTS:
            self._add_objects(rows)
            return
        kept = [(self._keys[row[0]], *row[1:]) for row in rows if row[0] in self._keys]
        list(self._insert(form, form.columns, kept))

    def _add_objects(self, rows: Sequence[Row]) -> None:
        by_name = {tuple(row[_NAME]): row for row in rows}
        values = [_interrupted(row)[1:] for row in rows]
        end = "ON CONFLICT (tenant, kind, id) DO NOTHING RETURNING tenant, kind, id, key"
        for *name, key in self._insert(OBJECTS, OBJECTS.columns[1:], values, end):
            row = by_name[tuple(name)]
            self._keys[row[0]] = key
            self._tables.count_growth(row[_TENANT], 1, row[_SIZE])
            self.num_added += 1
        self.num_left += len(rows)
        self.num_left -= sum(row[0] in self._keys for row in rows)

    def _insert(
        self, form: TableSchema, columns: Sequence[str], rows: Sequence[Row], end: str = ""
    ) -> Iterator[Row]:
        """Inserts rows, and yields the rows that the statement returns."""
        step = MAX_VARIABLES // len(columns)
        place = f"({marks(columns)})"
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            cursor = self._tables.execute(
                f"INSERT INTO {form.name} ({', '.join(columns)}) "
                f"VALUES {', '.join(place for _ in some)} {end}",
                [value for row in some for value in row],
            )
            yield from cursor.fetchall() if end else ()


def _interrupted(row: Row) -> Row:
    """Returns an object's row, in which a running response is marked as interrupted."""
    if row[_PROGRESS] != ResponseProgress.RUNNING:
        return row
    return [*row[:_PROGRESS], ResponseProgress.INTERRUPTED, *row[_PROGRESS + 1 :]]


_FORMAT: Final = "fastovms-state"

_INTEGER_LIMIT: Final = 2**63
_BLOBS: Final = ("body", "events", "data", "outputs", "job")

_FORM_OF: Final = {form.name: form for form in FORMS}


def write_portable(path: Path, source: RowSource, count: Callable[[int], object]) -> None:
    """Writes a portable file that any server can import, whatever its database.

    The file has one JSON text per line; the first line names the format, and the last one marks the
    file as complete. Only its owner can read the file, and it has a temporary name until it is
    complete. `count` is called with the number of rows written since its last call. Raises OSError
    if the file cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    try:
        with part.open("wb") as file:
            header = {"format": _FORMAT, "version": VERSION, "num_rows": source.num_rows()}
            crc, num_rows = zlib.crc32(_line(header)), 0
            file.write(_line(header))
            for form, rows in source.pages():
                lines = b"".join(_line([form.name, *map(_value, row)]) for row in rows)
                crc = zlib.crc32(lines, crc)
                file.write(lines)
                num_rows += len(rows)
                count(len(rows))
            file.write(_line({"end": num_rows, "crc": crc}))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class PortableFile:
    """Implements `RowSource` for an exported file. Methods raise ConfigurationError if the file is
    invalid, corrupt or truncated."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        line = file.readline()
        self._crc = zlib.crc32(line)
        header = _parse(line)
        if not isinstance(header, dict) or header.get("format") != _FORMAT:
            raise ConfigurationError(f"{file.name} is not an exported state")
        if (version := header.get("version")) != VERSION:
            raise ConfigurationError(
                f"{file.name} has the format {unsupported_version_text(version)}"
            )
        num_rows = header.get("num_rows")
        if not isinstance(num_rows, int):
            raise ConfigurationError(f"{file.name} is corrupt")
        self._num_rows = num_rows

    def num_rows(self) -> int:
        return self._num_rows

    def pages(self) -> Iterator[Page]:
        for form, rows in groupby(self._rows(), key=lambda row: row[0]):
            while some := [row for _, row in islice(rows, PAGE)]:
                yield form, some

    def _rows(self) -> Iterator[tuple[TableSchema, Row]]:
        for num_rows, line in enumerate(self._file):
            value = _parse(line)
            if isinstance(value, dict):
                if value != {"end": num_rows, "crc": self._crc}:
                    break
                return
            self._crc = zlib.crc32(line, self._crc)
            yield self._row(value)
        raise ConfigurationError(f"{self._file.name} is corrupt, or was cut off")

    def _row(self, value: Any) -> tuple[TableSchema, Row]:
        try:
            form = _FORM_OF[value[0]]
            return form, [
                _column(name, part) for name, part in zip(form.columns, value[1:], strict=True)
            ]
        except (LookupError, TypeError, ValueError):
            raise ConfigurationError(f"{self._file.name} is corrupt") from None


def _column(name: str, value: Any) -> object:
    """Converts a JSON value to a column's type. Raises TypeError or ValueError if the value is
    invalid."""
    if isinstance(value, bool | list | dict):
        raise TypeError
    if isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
        raise ValueError
    return base64.b64decode(value) if name in _BLOBS and value is not None else value


def _value(value: object) -> object:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _line(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _parse(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


_UNBOUNDED: Final = StateBounds(float("inf"), 2**63, 2**63)


OpenState = SqlDatabase[Any]
"""A database whose rows can be copied."""


@contextmanager
def open_state(
    place: str, password_file: Path | None, environ: Mapping[str, str], *, must_exist: bool = True
) -> Iterator[OpenState]:
    """Opens a state: a directory that no server uses, or the database of a URL, which servers may
    be using. Raises ConfigurationError if the state does not exist or a server uses the directory;
    StateFailed, also within the context, if the state cannot be read or written."""
    if "://" in place:
        with extra_needed():
            from fastovms.parts.postgres.database import open_url
        address = read_address(place, password_file, environ)
        with open_url(address, _UNBOUNDED, must_exist=must_exist) as shared:
            yield shared
        return
    directory = Path(place)
    if must_exist and not (directory / STATE_FILE).exists():
        raise ConfigurationError(f"{directory} has no stored state: {STATE_FILE} is missing")
    try:
        database = open_directory(directory, _UNBOUNDED, time.time, sets_aside=False)
    except UnusableFile as error:
        if error.is_fault:
            raise StateFailed(f"{directory}: {error}") from None
        raise ConfigurationError(f"cannot use the state in {directory}: {error}") from None
    try:
        yield database
    except sqlite3.Error as error:
        raise StateFailed(f"{directory}: {error}") from None
    finally:
        database.close()


Counter = Callable[[int], object]
"""Called with the number of rows copied since the last call."""


class CopyCounts(NamedTuple):
    """The number of objects added, and of objects that existed already and were not changed."""

    num_added: int
    num_left: int


@contextmanager
def rows_of(state: OpenState) -> Iterator[RowSource]:
    """Yields the rows of a state as a consistent snapshot."""
    with state.snapshot() as tables:
        yield TableRows(tables)


@contextmanager
def rows_in_file(path: Path) -> Iterator[RowSource]:
    """Yields the rows of an exported state. Raises ConfigurationError if the file cannot be read,
    or is not an exported state."""
    try:
        with path.open("rb") as file:
            yield PortableFile(file)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None


def copy_rows(source: RowSource, target: OpenState, count: Counter) -> CopyCounts:
    """Copies all rows into a state, or no rows if an error occurs."""
    with target.transaction() as tables:
        rows = RowTarget(tables)
        for form, page in source.pages():
            rows.add(form, page)
            count(len(page))
        return CopyCounts(rows.num_added, rows.num_left)


def export(source: RowSource, path: Path, count: Counter) -> None:
    """Writes all rows into a file. Raises ConfigurationError if the file cannot be written."""
    try:
        write_portable(path, source, count)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from None


def corrupt_rows(source: RowSource, count: Counter) -> Iterator[str]:
    """Yields a line for each row whose text does not match its checksum."""
    for form, page in source.pages():
        for row in page:
            for name, value in zip(form.columns, row, strict=True):
                try:
                    if isinstance(value, bytes):
                        unseal(value)
                except StateFailed:
                    yield f"{form.name}, object {row[0]}: {name} is corrupt"
        count(len(page))
