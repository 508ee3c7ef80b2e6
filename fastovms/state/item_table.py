"""Reads and writes the rows of items, each of which belongs to an object, in an order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from fastovms.state.seal import LENGTH, seal, unseal
from fastovms.state.sql import MAX_VARIABLES, SqlConnection, slices
from fastovms.state.store import (
    EarlierItems,
    ItemOrigin,
    ItemPage,
    Page,
    StoredItem,
    UnknownCursor,
)

OVERHEAD: Final = 256
"""The bytes that an object, an item or a pack of events takes beside its texts, about."""

_COLUMNS: Final = "object, position, side, id, body"
_NUM_COLUMNS: Final = 5

Turn = tuple[ItemOrigin, Sequence[StoredItem]]


class ItemTable:
    """The rows of items. Whoever adds to an object that others may know has it locked."""

    def __init__(self, connection: SqlConnection) -> None:
        self._execute = connection.execute

    def add(self, key: int, first_position: int, turns: Iterable[Turn]) -> None:
        """Adds items to an object, at the positions from the first one on."""
        rows = [
            (origin.value, item.id, seal(item.body)) for origin, items in turns for item in items
        ]
        for some in slices([*enumerate(rows, first_position)], MAX_VARIABLES // _NUM_COLUMNS):
            values = [value for position, row in some for value in (key, position, *row)]
            places = ", ".join("(?, ?, ?, ?, ?)" for _ in some)
            self._execute(f"INSERT INTO items ({_COLUMNS}) VALUES {places}", values)

    def next_position(self, key: int) -> int:
        [last] = self._execute(
            "SELECT max(position) FROM items WHERE object = ?", (key,)
        ).fetchone()
        return 0 if last is None else int(last) + 1

    def of(self, key: int, origin: ItemOrigin) -> list[StoredItem]:
        rows = self._execute(
            "SELECT id, body FROM items WHERE object = ? AND side = ? ORDER BY position",
            (key, origin.value),
        )
        return list(map(_item, rows))

    def newest(self, keys: Sequence[int], max_bytes: int) -> EarlierItems:
        """Returns the newest items of objects, the newest object first, that have no more than
        `max_bytes` together."""
        items: list[StoredItem] = []
        for some in slices(list(enumerate(keys)), MAX_VARIABLES // 2 - 1):
            chain = ", ".join("(CAST(? AS BIGINT), CAST(? AS BIGINT))" for _ in some)
            # `newer` is how many bytes the items have that come after this one: those that do not
            # fit are not read, but for the first of them.
            rows = self._execute(
                f"WITH chain (depth, object) AS (VALUES {chain}), sized AS ("
                f"SELECT depth, items.rowid AS item, sum(length(body) - {LENGTH}) OVER "
                f"(ORDER BY depth, position DESC) - length(body) + {LENGTH} AS newer "
                "FROM chain JOIN items ON items.object = chain.object) "
                "SELECT id, body FROM sized JOIN items ON items.rowid = item WHERE newer <= ? "
                "ORDER BY depth, position DESC",
                [*(value for pair in some for value in pair), max_bytes],
            )
            for item in map(_item, rows):
                max_bytes -= len(item.body)
                if max_bytes < 0:
                    return EarlierItems(items[::-1], is_whole=False)
                items.append(item)
        return EarlierItems(items[::-1])

    def find(self, key: int, item_id: str) -> bytes | None:
        row = self._execute(
            "SELECT body FROM items WHERE object = ? AND id = ? ORDER BY position DESC LIMIT 1",
            (key, item_id),
        ).fetchone()
        return None if row is None else unseal(row[0])

    def delete(self, key: int, item_id: str) -> list[int]:
        """Deletes items, and returns the length of each with its seal."""
        rows = self._execute(
            "DELETE FROM items WHERE object = ? AND id = ? RETURNING length(body)", (key, item_id)
        )
        return [length for (length,) in rows.fetchall()]

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

    def find_all(self, tenant: str, item_ids: Sequence[str]) -> dict[str, bytes]:
        """Returns the newest item of each id, in whatever object of the tenant it is."""
        found: dict[str, bytes] = {}
        for some in slices(list(dict.fromkeys(item_ids)), MAX_VARIABLES - 1):
            # SQLite makes a cross join in the order in which it is written: by the id, and no
            # further than to the first row. Many responses may have an item that a client sends
            # each time.
            rows = self._execute(
                f"WITH wanted (id) AS (VALUES {', '.join('(?)' for _ in some)}) "
                "SELECT id, (SELECT items.body FROM items CROSS JOIN objects "
                "WHERE items.id = wanted.id AND key = object AND tenant = ? "
                "ORDER BY items.rowid DESC LIMIT 1) FROM wanted",
                (*some, tenant),
            )
            found |= {id: unseal(body) for id, body in rows if body is not None}
        return found


def _item(row: tuple[str, bytes]) -> StoredItem:
    id, sealed = row
    return StoredItem(id, unseal(sealed))
