"""Reads all rows of a state in an order in which they can be added to another one, and adds
them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from fastovms.state.sql import MAX_VARIABLES, marks
from fastovms.state.store import ResponseProgress
from fastovms.state.tables import COLUMNS, Tables

PAGE: Final = 100
"""How many rows are copied at once."""


class TableForm(NamedTuple):
    """A table whose rows are copied.

    Attributes:
        columns: what is read of it. The first one is the key of the object that the row is, or
            belongs to.
        order: the columns that rows are read by; of items, the order in which they were added, by
            which the newest one of an id is found.
    """

    name: str
    columns: tuple[str, ...]
    order: tuple[str, ...]


OBJECTS: Final = TableForm("objects", ("key", *COLUMNS.split(", ")), ("key",))
ITEMS: Final = TableForm("items", ("object", "position", "side", "id", "body"), ("rowid",))
EVENTS: Final = TableForm(
    "event_packs", ("object", "first", "data", "outputs"), ("object", "first")
)
JOBS: Final = TableForm("jobs", ("object", "job"), ("object",))
FORMS: Final = (OBJECTS, ITEMS, EVENTS, JOBS)
"""The tables, objects before what belongs to them. Who runs a response is not copied."""

Row = Sequence[Any]
Page = tuple[TableForm, list[Row]]

_PROGRESS: Final = OBJECTS.columns.index("progress")
_TENANT: Final = OBJECTS.columns.index("tenant")
_SIZE: Final = OBJECTS.columns.index("size")
_NAME: Final = slice(1, 4)
"""The tenant, kind and id of an object."""


class RowSource(Protocol):
    """Where rows are copied from."""

    def num_rows(self) -> int: ...

    def pages(self) -> Iterator[Page]:
        """Yields the rows, objects before what belongs to them."""


class TableRows:
    """Implements `RowSource` by the tables of a database, within one transaction."""

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

    def _page(self, form: TableForm, last: Row) -> list[Row]:
        order = ", ".join(form.order)
        return self._execute(
            f"SELECT {order}, {', '.join(form.columns)} FROM {form.name} "
            f"WHERE ({order}) > ({marks(last)}) ORDER BY {order} LIMIT ?",
            (*last, PAGE),
        ).fetchall()


class RowTarget:
    """Adds rows to tables, within one transaction. An object that is there already stays as it is.

    Attributes:
        num_added: how many objects were added.
        num_left: how many were there already.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._keys: dict[int, int] = {}
        self.num_added = 0
        self.num_left = 0

    def add(self, form: TableForm, rows: Sequence[Row]) -> None:
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
        self, form: TableForm, columns: Sequence[str], rows: Sequence[Row], end: str = ""
    ) -> Iterator[Row]:
        """Inserts rows, and yields what the statement returns of them."""
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
    """Returns an object as it is where nobody runs it."""
    if row[_PROGRESS] != ResponseProgress.RUNNING:
        return row
    return [*row[:_PROGRESS], ResponseProgress.INTERRUPTED, *row[_PROGRESS + 1 :]]
