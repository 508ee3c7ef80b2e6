"""The tables of the store: SQL for objects, items and their sizes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol, TypeVar, overload

from fastovms.errors import StateFailed, TooLarge
from fastovms.state.store import (
    EarlierItems,
    ItemOrigin,
    ItemPage,
    Page,
    ResponseProgress,
    StoredItem,
    UnknownCursor,
)

LENGTH: Final = 4
"""The size of a checksum in bytes."""


@overload
def seal(text: bytes) -> bytes: ...
@overload
def seal(text: None) -> None: ...
def seal(text: bytes | None) -> bytes | None:
    """Returns the content followed by its CRC-32; None for None."""
    return None if text is None else text + zlib.crc32(text).to_bytes(LENGTH, "little")


def unseal(sealed: bytes) -> bytes:
    """Checks the CRC-32 and returns the content. Raises StateFailed if the checksum does not match;
    other content in the same file may be intact."""
    text = sealed[:-LENGTH]
    if seal(text) != sealed:
        raise StateFailed("stored data is corrupt: its checksum differs")
    return text


MAX_VARIABLES: Final = 500
"""The maximum number of variables in one SQL statement."""

T = TypeVar("T")


class SqlCursor(Protocol):
    """The rows that a statement returns."""

    def fetchone(self) -> Any:
        """Returns the next row; None = no more rows."""

    def fetchall(self) -> list[Any]:
        """Returns the remaining rows."""

    def __iter__(self) -> Iterator[Any]: ...


class SqlConnection(Protocol):
    """A connection to a database."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> SqlCursor:
        """Runs a statement, in which each ? is replaced by one of the values."""


class RowLocks(NamedTuple):
    """The clauses with which a SELECT locks its rows until the transaction ends. Both are empty if
    only one process uses the database.

    Attributes:
        wait: the clause that waits for locked rows.
        skip: the clause that skips locked rows.
    """

    wait: str = ""
    skip: str = ""


def marks(values: Iterable[object]) -> str:
    """Returns SQL placeholders, one for each value."""
    return ", ".join("?" for _ in values)


def slices(values: Sequence[T], length: int) -> Iterator[Sequence[T]]:
    """Yields consecutive parts of at most `length` values."""
    for start in range(0, len(values), length):
        yield values[start : start + length]


OVERHEAD: Final = 256
"""The approximate bytes of an object, an item or a pack of events in addition to its content."""

_COLUMNS: Final = "object, position, side, id, body"
_NUM_COLUMNS: Final = 5

Turn = tuple[ItemOrigin, Sequence[StoredItem]]


class ItemTable:
    """The table of items. A transaction that adds to an existing object must have locked the
    object."""

    def __init__(self, connection: SqlConnection) -> None:
        self._execute = connection.execute

    def add(self, key: int, first_position: int, turns: Iterable[Turn]) -> None:
        """Adds items to an object, at consecutive positions from `first_position` on."""
        rows = [
            (origin.value, item.id, seal(item.body)) for origin, items in turns for item in items
        ]
        for some in slices([*enumerate(rows, first_position)], MAX_VARIABLES // _NUM_COLUMNS):
            values = [value for position, row in some for value in (key, position, *row)]
            places = ", ".join("(?, ?, ?, ?, ?)" for _ in some)
            self._execute(f"INSERT INTO items ({_COLUMNS}) VALUES {places}", values)

    def next_position(self, key: int) -> int:
        """Returns the position after the last item of an object."""
        [last] = self._execute(
            "SELECT max(position) FROM items WHERE object = ?", (key,)
        ).fetchone()
        return 0 if last is None else int(last) + 1

    def of(self, key: int, origin: ItemOrigin) -> list[StoredItem]:
        """Returns the input or output items of an object, in order."""
        rows = self._execute(
            "SELECT id, body FROM items WHERE object = ? AND side = ? ORDER BY position",
            (key, origin.value),
        )
        return list(map(_item, rows))

    def newest(self, keys: Sequence[int], max_bytes: int) -> EarlierItems:
        """Returns the newest items of several objects, the newest object first, up to `max_bytes`
        in total."""
        items: list[StoredItem] = []
        for some in slices(list(enumerate(keys)), MAX_VARIABLES // 2 - 1):
            chain = ", ".join("(CAST(? AS BIGINT), CAST(? AS BIGINT))" for _ in some)
            # `newer` is the total size of all later items. Items that begin beyond max_bytes are
            # not read. The last item read may exceed max_bytes and is then dropped below.
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
        """Returns the JSON of the newest item with this id in an object, or None if there is
        none."""
        row = self._execute(
            "SELECT body FROM items WHERE object = ? AND id = ? ORDER BY position DESC LIMIT 1",
            (key, item_id),
        ).fetchone()
        return None if row is None else unseal(row[0])

    def delete(self, key: int, item_id: str) -> list[int]:
        """Deletes an object's items with this id, and returns the stored size of each in bytes."""
        rows = self._execute(
            "DELETE FROM items WHERE object = ? AND id = ? RETURNING length(body)", (key, item_id)
        )
        return [length for (length,) in rows.fetchall()]

    def page(self, key: int, page: Page) -> ItemPage:
        """Returns a page of the input items. Raises UnknownCursor if `page.after` is not an item's
        id."""
        values = (key, ItemOrigin.INPUT.value)
        return _page(self._execute, "items", "position", "object = ? AND side = ?", values, page)

    def find_all(self, tenant: str, item_ids: Sequence[str]) -> dict[str, bytes]:
        """Returns the newest item of each id in any object of the tenant."""
        found: dict[str, bytes] = {}
        for some in slices(list(dict.fromkeys(item_ids)), MAX_VARIABLES - 1):
            # SQLite joins in the written order with CROSS JOIN: by id, stopping at the first row.
            # Many responses may share an item that a client sends each time.
            rows = self._execute(
                f"WITH wanted (id) AS (VALUES {', '.join('(?)' for _ in some)}) "
                "SELECT id, (SELECT items.body FROM items CROSS JOIN objects "
                "WHERE items.id = wanted.id AND key = object AND tenant = ? "
                "ORDER BY items.rowid DESC LIMIT 1) FROM wanted",
                (*some, tenant),
            )
            found |= {id: unseal(body) for id, body in rows if body is not None}
        return found


def _page(
    execute: Callable[..., SqlCursor],
    table: str,
    order: str,
    condition: str,
    values: Sequence[object],
    page: Page,
) -> ItemPage:
    """Returns a page of the rows that satisfy a condition, in the order of a column. Raises
    UnknownCursor if `page.after` is not the id of such a row."""
    # An id may have several rows: begin after the last one; otherwise pages would repeat forever.
    direction, comparison, last = ("", ">", "max") if page.ascending else ("DESC", "<", "min")
    if page.after is not None:
        [start] = execute(
            f"SELECT {last}({order}) FROM {table} WHERE {condition} AND id = ?",
            (*values, page.after),
        ).fetchone()
        if start is None:
            raise UnknownCursor(page.after)
        condition, values = f"{condition} AND {order} {comparison} ?", (*values, start)
    rows = execute(
        f"SELECT id, body FROM {table} WHERE {condition} ORDER BY {order} {direction} LIMIT ?",
        (*values, page.limit + 1),
    ).fetchall()
    items = list(map(_item, rows[: page.limit]))
    return ItemPage(items, has_more=len(rows) > page.limit)


def _item(row: tuple[str, bytes]) -> StoredItem:
    id, sealed = row
    return StoredItem(id, unseal(sealed))


_USE_INTERVAL: Final = 60.0
"""Seconds within which a second use of an object is not recorded. Otherwise each new response would
update all rows of its chain."""

COLUMNS: Final = "tenant, kind, id, progress, previous_id, body, events, size, used_at"
"""The columns of the table of objects, without the key."""

_HAS_WRONG_SIZE: Final = (
    "size <> ? + length(body) + coalesce(length(events), 0) "
    "+ coalesce((SELECT sum(length(body) + ?) FROM items WHERE object = key), 0) "
    "+ coalesce((SELECT sum(length(data) + coalesce(length(outputs), 0) + ?) FROM event_packs "
    "WHERE object = key), 0) "
    "+ coalesce((SELECT length(job) + ? FROM jobs WHERE object = key), 0)"
)
"""SQL condition: the object's size differs from that of its content."""

_HAS_WRONG_PROGRESS: Final = "(progress = ?) <> (key IN (SELECT object FROM runs))"
"""SQL condition: the object runs without an owner, or has an owner without running."""

MAX_CHAIN: Final = 10_000
"""The maximum length of a chain of responses. A whole chain is read whenever a response is added,
while other operations wait."""

_PAGE: Final = 100
"""The number of faulty objects that are read at once."""

Clock = Callable[[], float]
Row = tuple[object, ...]


class ObjectKind(IntEnum):
    """The kind of an object, as in the column `kind`."""

    RESPONSE = 0
    CONVERSATION = 1


class Totals(NamedTuple):
    """The number of objects, and their size in bytes, including their items."""

    num_objects: int = 0
    num_bytes: int = 0

    def plus(self, num_objects: int, num_bytes: int) -> Totals:
        """Returns the totals with these numbers added."""
        return Totals(self.num_objects + num_objects, self.num_bytes + num_bytes)


Shares = Mapping[str, Totals]
"""The totals of each tenant, or changes of them."""


class EvictionCandidate(NamedTuple):
    """An object that may be evicted."""

    key: int
    tenant: str
    size: int


class ChainLink(NamedTuple):
    """A response in a chain, and the id of the response that it continues; None = the first."""

    key: int
    id: str
    previous_id: str | None
    progress: ResponseProgress


class Tables:
    """The tables of an open database. Methods raise `TooLarge` if an object would exceed
    `max_object`.

    Args:
        clock: returns the Unix time in seconds.
        max_object: the maximum size of an object with its items, in bytes.

    Attributes:
        execute: runs a statement.
        locks: the clauses that lock rows before changes.
        items: the table of items. Methods of this class also count their sizes.
        growth: the growth of each tenant's objects since it was last cleared.
    """

    locks = RowLocks()

    def __init__(self, connection: SqlConnection, clock: Clock, max_object: int) -> None:
        self.execute = self._execute = connection.execute
        self._clock = clock
        self._max_object = max_object
        self._used: set[int] = set()
        self.items = ItemTable(connection)
        self.growth: dict[str, Totals] = {}

    # Objects

    def find(
        self, tenant: str, kind: ObjectKind, id: str, columns: str, *, for_change: bool = False
    ) -> Row | None:
        """Returns columns of an object, or None if it does not exist. With `for_change`, locks its
        row until the transaction ends."""
        lock = self.locks.wait if for_change else ""
        row: Row | None = self._execute(
            f"SELECT {columns} FROM objects WHERE tenant = ? AND kind = ? AND id = ? {lock}",
            (tenant, kind, id),
        ).fetchone()
        if row is None:
            return None
        return tuple(unseal(value) if isinstance(value, bytes) else value for value in row)

    def chain(self, tenant: str, id: str, max_length: int) -> list[ChainLink]:
        """Returns the chain of a response, newest first. The chain ends at a missing response, or
        at one that continues the first. Raises TooLarge if the chain is longer than `max_length`,
        or runs into a circle."""
        rows = self._execute(
            "WITH RECURSIVE chain (depth, key, id, previous_id, progress) AS ("
            "SELECT 0, key, id, previous_id, progress FROM objects "
            "WHERE tenant = ? AND kind = ? AND id = ? "
            "UNION ALL "
            "SELECT depth + 1, o.key, o.id, o.previous_id, o.progress "
            "FROM chain CROSS JOIN objects AS o "
            "WHERE o.tenant = ? AND o.kind = ? AND o.id = chain.previous_id "
            "AND o.id <> ? AND depth < ?"
            ") SELECT key, id, previous_id, progress FROM chain ORDER BY depth",
            (tenant, ObjectKind.RESPONSE, id, tenant, ObjectKind.RESPONSE, id, max_length),
        ).fetchall()
        if len(rows) > max_length:
            raise TooLarge(f"a chain of responses must have at most {MAX_CHAIN} responses")
        return [
            ChainLink(key, id, previous_id, ResponseProgress(progress))
            for key, id, previous_id, progress in rows
        ]

    def page(self, tenant: str, kind: ObjectKind, page: Page) -> ItemPage:
        """Returns a page of objects without their items, in the order in which they were added.
        Raises UnknownCursor if `page.after` is not the id of an object."""
        return _page(
            self._execute, "objects", "key", "tenant = ? AND kind = ?", (tenant, kind), page
        )

    def insert(
        self,
        tenant: str,
        kind: ObjectKind,
        id: str,
        body: bytes,
        turns: Sequence[Turn] = (),
        *,
        progress: ResponseProgress = ResponseProgress.FINISHED,
        previous_id: str | None = None,
        events: bytes | None = None,
    ) -> int | None:
        """Inserts an object with its items, and returns its key. Returns None, and changes nothing,
        if the id exists already."""
        body, events = seal(body), seal(events)
        size = OVERHEAD + len(body) + len(events or b"") + _size(turns)
        self._check_size(size)
        row = self._execute(
            f"INSERT INTO objects ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (tenant, kind, id) DO NOTHING RETURNING key",
            (tenant, kind, id, progress, previous_id, body, events, size, self._clock()),
        ).fetchone()
        if row is None:
            return None
        key = int(row[0])
        self.items.add(key, 0, turns)
        self.count_growth(tenant, 1, size)
        return key

    def replace_body(self, key: int, body: bytes) -> None:
        """Replaces the JSON of an object."""
        [length] = self._execute(
            "SELECT length(body) FROM objects WHERE key = ?", (key,)
        ).fetchone()
        body = seal(body)
        self._execute("UPDATE objects SET body = ? WHERE key = ?", (body, key))
        self.grow(key, len(body) - length)

    def delete(self, tenant: str, kind: ObjectKind, id: str) -> bool:
        """Deletes an object with its items. Returns False if there is none."""
        row = self._execute(
            "DELETE FROM objects WHERE tenant = ? AND kind = ? AND id = ? RETURNING size",
            (tenant, kind, id),
        ).fetchone()
        if row is None:
            return False
        self.count_growth(tenant, -1, -row[0])
        return True

    def append(self, key: int, items: Sequence[StoredItem]) -> None:
        """Appends items to an object that was locked by `find`."""
        turns = [(ItemOrigin.INPUT, items)]
        self.grow(key, _size(turns))
        self.items.add(key, self.items.next_position(key), turns)

    def delete_item(self, key: int, item_id: str) -> bool:
        """Deletes the items with this id from an object. Returns False if there are none."""
        lengths = self.items.delete(key, item_id)
        self.grow(key, -sum(length + OVERHEAD for length in lengths))
        return bool(lengths)

    def note_use(self, keys: Iterable[int]) -> None:
        """Records the use of objects in memory; `write_uses` stores it later. Reading therefore
        does not fail on a full disk."""
        self._used.update(keys)

    @property
    def has_uses(self) -> bool:
        """Whether `write_uses` has anything to store."""
        return bool(self._used)

    def write_uses(self) -> None:
        """Stores the times of use that `note_use` has recorded."""
        keys, self._used = list(self._used), set()
        now = self._clock()
        for some in slices(keys, MAX_VARIABLES - 2):
            self._execute(
                "UPDATE objects SET used_at = ? WHERE key IN (SELECT key FROM objects "
                f"WHERE used_at < ? AND key IN ({marks(some)}) {self.locks.skip})",
                (now, now - _USE_INTERVAL, *some),
            )

    # The least recently used objects, without responses that still run

    def oldest_use(self) -> float | None:
        """Returns the Unix time of the least recent use of any object that is not running; None =
        no such objects."""
        [oldest] = self._execute("SELECT min(used_at) FROM objects WHERE progress <> 0").fetchone()
        used_at: float | None = oldest
        return used_at

    def expired(self, last_use: float, limit: int) -> list[EvictionCandidate]:
        """Returns the objects of all tenants that were last used before `last_use`, at most
        `limit`, oldest first, and locks them."""
        return self._oldest("used_at <= ?", last_use, limit)

    def oldest_of(self, tenant: str, limit: int) -> list[EvictionCandidate]:
        """Returns a tenant's least recently used objects, oldest first, and locks them. Skips
        objects locked by other transactions."""
        return self._oldest("tenant = ?", tenant, limit)

    def _oldest(self, condition: str, value: object, limit: int) -> list[EvictionCandidate]:
        rows = self._execute(
            f"SELECT key, tenant, size FROM objects WHERE progress <> 0 AND {condition} "
            f"ORDER BY used_at LIMIT ? {self.locks.skip}",
            (value, limit),
        ).fetchall()
        return [EvictionCandidate(*row) for row in rows]

    def delete_all(self, objects: Sequence[EvictionCandidate]) -> None:
        """Deletes objects with their items."""
        keys = [old.key for old in objects]
        if keys:
            self._execute(f"DELETE FROM objects WHERE key IN ({marks(keys)})", keys)
        for _, tenant, size in objects:
            self.count_growth(tenant, -1, -size)

    # All tenants together

    def release_running(self) -> None:
        """Expires all leases, because the previous process has ended, and sets responses that
        cannot be resumed to INTERRUPTED."""
        self._execute("DELETE FROM runs WHERE model = ''")
        self._execute("UPDATE runs SET lease_until = 0")
        self._execute(
            "UPDATE objects SET progress = ? WHERE progress = ? "
            "AND key NOT IN (SELECT object FROM runs)",
            (ResponseProgress.INTERRUPTED, ResponseProgress.RUNNING),
        )

    def count(self) -> Shares:
        """Counts the objects of each tenant by reading all rows."""
        rows = self._execute(
            "SELECT tenant, count(*), CAST(sum(size) AS BIGINT) FROM objects GROUP BY tenant"
        )
        return {tenant: Totals(count, num_bytes) for tenant, count, num_bytes in rows}

    def faults(self, totals: Totals, shares: Shares) -> Iterator[str]:
        """Yields a sentence for each inconsistency. Reads all rows.

        Args:
            totals: the number and size of all objects, as maintained by transactions.
            shares: the same for each tenant.
        """
        for id in self._ids_where(_HAS_WRONG_SIZE, (OVERHEAD,) * 4):
            yield f"{id}: its size is not that of its texts"
        for id in self._ids_where(_HAS_WRONG_PROGRESS, (ResponseProgress.RUNNING,)):
            yield f"{id}: it runs and no replica owns it, or the reverse"
        counted = self.count()
        if totals != (total := total_of(counted)):
            yield f"there are {total}, but {totals} are counted"
        elif shares != counted:
            yield "the shares of tenants are not those of their objects"

    def _ids_where(self, condition: str, values: Row) -> Iterator[str]:
        """Yields the ids of objects that satisfy a condition, reading a few at a time."""
        last = -1
        while rows := self._execute(
            f"SELECT key, id FROM objects WHERE key > ? AND {condition} ORDER BY key LIMIT ?",
            (last, *values, _PAGE),
        ).fetchall():
            yield from (id for _, id in rows)
            last = rows[-1][0]

    def grow(self, key: int, num_bytes: int) -> None:
        """Changes an object's recorded size by a number of bytes."""
        if not num_bytes:
            return
        tenant, size = self._execute(
            "UPDATE objects SET size = size + ? WHERE key = ? RETURNING tenant, size",
            (num_bytes, key),
        ).fetchone()
        if num_bytes > 0:
            self._check_size(size)
        self.count_growth(tenant, 0, num_bytes)

    def count_growth(self, tenant: str, num_objects: int, num_bytes: int) -> None:
        """Adds to a tenant's entry in `growth`."""
        add_growth(self.growth, {tenant: Totals(num_objects, num_bytes)})

    def _check_size(self, size: int) -> None:
        """Raises TooLarge if an object exceeds the limit of all objects together: it would evict
        all others."""
        if size > self._max_object:
            raise TooLarge(
                f"the object has {size} bytes, more than the limit of all stored objects together "
                f"({self._max_object})"
            )


def add_growth(shares: dict[str, Totals], growth: Shares) -> None:
    """Adds `growth` to `shares`, and removes tenants that have no objects left."""
    for tenant, change in growth.items():
        share = shares.get(tenant, Totals()).plus(*change)
        if share == Totals():
            shares.pop(tenant, None)
        else:
            shares[tenant] = share


def total_of(shares: Shares) -> Totals:
    """Returns the totals of all tenants together."""
    return Totals(*map(sum, zip(*shares.values(), strict=True))) if shares else Totals()


def _size(turns: Iterable[Turn]) -> int:
    """Returns the stored size of items in bytes."""
    return sum(len(item.body) + LENGTH + OVERHEAD for _, items in turns for item in items)
