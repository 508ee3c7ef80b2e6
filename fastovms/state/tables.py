"""Reads and writes the rows of the state database, and counts how much they are together.

An object is a response or a conversation; its items go with it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

from fastovms.errors import TooLarge
from fastovms.state.seal import seal, unseal
from fastovms.state.store import (
    EarlierItems,
    ItemOrigin,
    ItemPage,
    Page,
    ResponseProgress,
    StoredItem,
    UnknownCursor,
)

_OVERHEAD: Final = 256
"""The bytes that an object or an item takes beside its texts, about."""

_USE_INTERVAL: Final = 60.0
"""Seconds within which a second use of an object is not noted, so that a long chain of responses is
not written anew for each one that is added to it."""

_COLUMNS: Final = "tenant, kind, id, progress, previous_id, body, events, size, used_at"
"""The columns of an object, without its key."""

_MAX_VARIABLES: Final = 500
"""How many variables one statement may have."""

Clock = Callable[[], float]
Row = tuple[object, ...]
T = TypeVar("T")


class ObjectKind(IntEnum):
    """What an object is, as the column `kind` has it."""

    RESPONSE = 0
    CONVERSATION = 1


class Totals(NamedTuple):
    """How many objects there are, and the bytes of them with their items."""

    num_objects: int
    num_bytes: int


class Tables:
    """The rows of an open database. Its methods raise `TooLarge` where they would make an object
    larger than `max_object`.

    Args:
        clock: tells unix time in seconds.
        max_object: the most bytes of one object with its items.

    Attributes:
        totals: what is kept now.
    """

    def __init__(self, connection: sqlite3.Connection, clock: Clock, max_object: int) -> None:
        self._execute = connection.execute
        self._execute_many = connection.executemany
        self._clock = clock
        self._max_object = max_object
        self._used: set[int] = set()
        self.totals = self.count()

    # Objects

    def find(self, tenant: str, kind: ObjectKind, id: str, columns: str) -> Row | None:
        row: Row | None = self._execute(
            f"SELECT {columns} FROM objects WHERE tenant = ? AND kind = ? AND id = ?",
            (tenant, kind, id),
        ).fetchone()
        if row is None:
            return None
        return tuple(unseal(value) if isinstance(value, bytes) else value for value in row)

    def insert(
        self,
        tenant: str,
        kind: ObjectKind,
        id: str,
        body: bytes,
        *,
        progress: ResponseProgress = ResponseProgress.FINISHED,
        previous_id: str | None = None,
        events: bytes | None = None,
    ) -> int:
        """Inserts an object and returns its key."""
        body, events = seal(body), seal(events)
        size = _OVERHEAD + len(body) + len(events or b"")
        self._check_size(size)
        key = self._execute(
            f"INSERT INTO objects ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (tenant, kind, id, progress, previous_id, body, events, size, self._clock()),
        ).lastrowid
        assert key is not None
        self.totals = Totals(self.totals.num_objects + 1, self.totals.num_bytes + size)
        return key

    def replace_body(self, key: int, body: bytes) -> None:
        [length] = self._execute(
            "SELECT length(body) FROM objects WHERE key = ?", (key,)
        ).fetchone()
        body = seal(body)
        self._execute("UPDATE objects SET body = ? WHERE key = ?", (body, key))
        self._grow(key, len(body) - length)

    def delete(self, tenant: str, kind: ObjectKind, id: str) -> bool:
        row = self._execute(
            "DELETE FROM objects WHERE tenant = ? AND kind = ? AND id = ? RETURNING size",
            (tenant, kind, id),
        ).fetchone()
        if row is None:
            return False
        self.totals = Totals(self.totals.num_objects - 1, self.totals.num_bytes - row[0])
        return True

    def note_use(self, keys: Iterable[int]) -> None:
        """Takes note that objects were used, for `write_uses` to write down: what only reads must
        not fail because a disk is full."""
        self._used.update(keys)

    @property
    def has_uses(self) -> bool:
        return bool(self._used)

    def write_uses(self) -> None:
        keys, self._used = list(self._used), set()
        now = self._clock()
        for some in _slices(keys, _MAX_VARIABLES):
            self._execute(
                f"UPDATE objects SET used_at = ? WHERE used_at < ? AND key IN ({_marks(some)})",
                (now, now - _USE_INTERVAL, *some),
            )

    # The least recently used, without responses that still run

    def oldest_use(self) -> float | None:
        [oldest] = self._execute("SELECT min(used_at) FROM objects WHERE progress <> 0").fetchone()
        used_at: float | None = oldest
        return used_at

    def oldest(self, limit: int) -> list[tuple[int, int, float]]:
        """Returns key, size and time of the last use of the objects that were not used for longest,
        in that order."""
        return self._execute(
            "SELECT key, size, used_at FROM objects WHERE progress <> 0 ORDER BY used_at LIMIT ?",
            (limit,),
        ).fetchall()

    def delete_keys(self, sizes: Mapping[int, int]) -> None:
        """Deletes objects, given the size of each by its key."""
        self._execute(f"DELETE FROM objects WHERE key IN ({_marks(sizes)})", tuple(sizes))
        count, num_bytes = self.totals
        self.totals = Totals(count - len(sizes), num_bytes - sum(sizes.values()))

    # Items of one object

    def append(self, key: int, items: Iterable[StoredItem], origin: ItemOrigin) -> None:
        [last] = self._execute(
            "SELECT max(position) FROM items WHERE object = ?", (key,)
        ).fetchone()
        first = 0 if last is None else last + 1
        rows = [
            (key, position, origin.value, item.id, seal(item.body))
            for position, item in enumerate(items, first)
        ]
        if rows:
            self._execute_many("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)
            self._grow(key, sum(len(row[-1]) + _OVERHEAD for row in rows))

    def items(self, key: int, origin: ItemOrigin) -> list[StoredItem]:
        rows = self._execute(
            "SELECT id, body FROM items WHERE object = ? AND side = ? ORDER BY position",
            (key, origin.value),
        )
        return list(map(_item, rows))

    def newest_items(self, key: int, max_bytes: int) -> EarlierItems:
        """Returns the newest items that have no more than `max_bytes` together."""
        rows = self._execute(
            "SELECT id, body FROM items WHERE object = ? ORDER BY position DESC", (key,)
        )
        items: list[StoredItem] = []
        for item in map(_item, rows):
            max_bytes -= len(item.body)
            if max_bytes < 0:
                return EarlierItems(items[::-1], is_whole=False)
            items.append(item)
        return EarlierItems(items[::-1])

    def find_item(self, key: int, item_id: str) -> bytes | None:
        row = self._execute(
            "SELECT body FROM items WHERE object = ? AND id = ? ORDER BY position DESC",
            (key, item_id),
        ).fetchone()
        return None if row is None else unseal(row[0])

    def delete_item(self, key: int, item_id: str) -> bool:
        deleted = self._execute(
            "DELETE FROM items WHERE object = ? AND id = ? RETURNING length(body)", (key, item_id)
        ).fetchall()
        self._grow(key, -sum(length + _OVERHEAD for (length,) in deleted))
        return bool(deleted)

    def page(self, key: int, page: Page) -> ItemPage:
        """Returns a page of the items that were input.

        Raises:
            UnknownCursor: `page.after` is none of them.
        """
        # After the last of several items of one id, so that a list of pages has an end.
        order, comparison, last = ("", ">", "max") if page.ascending else ("DESC", "<", "min")
        start = ""
        values: list[object] = [key, ItemOrigin.INPUT.value]
        if page.after is not None:
            cursor = self._execute(
                f"SELECT {last}(position) FROM items WHERE object = ? AND side = ? AND id = ?",
                (*values, page.after),
            ).fetchone()[0]
            if cursor is None:
                raise UnknownCursor(page.after)
            start = f"AND position {comparison} ?"
            values.append(cursor)
        rows = self._execute(
            f"SELECT id, body FROM items WHERE object = ? AND side = ? {start} "
            f"ORDER BY position {order} LIMIT ?",
            (*values, page.limit + 1),
        ).fetchall()
        items = list(map(_item, rows))
        return ItemPage(items[: page.limit], has_more=len(items) > page.limit)

    # All together

    def find_items(self, tenant: str, item_ids: Sequence[str]) -> dict[str, bytes]:
        """Returns the newest item of each id, of those that are found."""
        found: dict[str, bytes] = {}
        for id in dict.fromkeys(item_ids):
            # A cross join is made in the order in which it is written: by the id, and no further
            # than to the first row. Many responses may have an item that a client sends each time.
            row = self._execute(
                "SELECT items.body FROM items CROSS JOIN objects ON key = object "
                "WHERE items.id = ? AND tenant = ? ORDER BY items.rowid DESC LIMIT 1",
                (id, tenant),
            ).fetchone()
            if row is not None:
                found[id] = unseal(row[0])
        return found

    def add_all(self, other: Tables) -> None:
        """Adds every row of the other tables; an object takes the place of one with its id."""
        [last] = self._execute("SELECT coalesce(max(key), 0) FROM objects").fetchone()
        for statement, rows in (
            (
                "DELETE FROM objects WHERE tenant = ? AND kind = ? AND id = ?",
                other._execute("SELECT tenant, kind, id FROM objects"),
            ),
            (
                f"INSERT INTO objects (key, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                other._execute(f"SELECT key + ?, {_COLUMNS} FROM objects", (last,)),
            ),
            (
                "INSERT INTO items VALUES (?, ?, ?, ?, ?)",
                # In the order in which they were added, by which `find_items` goes.
                other._execute(
                    "SELECT object + ?, position, side, id, body FROM items ORDER BY rowid",
                    (last,),
                ),
            ),
        ):
            self._execute_many(statement, rows)
        self.totals = self.count()

    def interrupt_running(self) -> None:
        self._execute(
            "UPDATE objects SET progress = ? WHERE progress = ?",
            (ResponseProgress.INTERRUPTED, ResponseProgress.RUNNING),
        )

    def count(self) -> Totals:
        """Counts `totals` again, from the rows, all of which it reads."""
        return Totals(
            *self._execute("SELECT count(*), coalesce(sum(size), 0) FROM objects").fetchone()
        )

    def check(self) -> None:
        """Raises AssertionError when what is kept contradicts itself. It reads everything."""
        assert self._execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert self._execute("PRAGMA foreign_key_check").fetchall() == []
        assert self.totals == self.count()
        wrong_sizes = self._execute(
            "SELECT id FROM objects WHERE size <> ? + length(body) + coalesce(length(events), 0) "
            "+ coalesce((SELECT sum(length(body) + ?) FROM items WHERE object = key), 0)",
            (_OVERHEAD, _OVERHEAD),
        ).fetchall()
        assert wrong_sizes == []

    def _grow(self, key: int, num_bytes: int) -> None:
        [size] = self._execute(
            "UPDATE objects SET size = size + ? WHERE key = ? RETURNING size", (num_bytes, key)
        ).fetchone()
        if num_bytes > 0:
            self._check_size(size)
        self.totals = self.totals._replace(num_bytes=self.totals.num_bytes + num_bytes)

    def _check_size(self, size: int) -> None:
        """Raises TooLarge for an object that is larger than all may be together: it would only
        drive out the others."""
        if size > self._max_object:
            raise TooLarge(
                f"what is to be kept has {size} bytes, but all that is kept may have only "
                f"{self._max_object}"
            )


def _item(row: tuple[str, bytes]) -> StoredItem:
    id, sealed = row
    return StoredItem(id, unseal(sealed))


def _marks(values: Iterable[object]) -> str:
    return ", ".join("?" for _ in values)


def _slices(values: Sequence[T], length: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), length):
        yield values[start : start + length]
