"""Reads and writes the rows of responses that run: who owns them until when, and what their streams
have told so far. Leases go by `unix_time()`, the clock of the database: replicas' may differ.

Whoever changes a running response has its object locked, so that no two wait for each other; only a
renewal has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fastovms.state.item_table import OVERHEAD
from fastovms.state.seal import seal, unseal
from fastovms.state.store import EventPack, OwnedResponse, ResponseKey, ResponseProgress
from fastovms.state.tables import Tables


class Replica(NamedTuple):
    """A process that runs responses.

    Attributes:
        id: random; of one replica only.
        lease: seconds for which a response stays the replica's without being renewed.
    """

    id: str
    lease: float


ONLY_REPLICA: Final = Replica("", float("inf"))
"""Stands for the process where no other one uses the database."""


class RunningResponses:
    """The rows of running responses, as one replica sees them."""

    def __init__(self, tables: Tables, replica: Replica) -> None:
        self._tables = tables
        self._execute = tables.execute
        self._replica = replica

    def start(self, key: int) -> None:
        """Makes a response this replica's that has just been added."""
        id, lease = self._replica
        self._execute(
            "INSERT INTO runs (object, owner, lease_until, cancel_requested) "
            "VALUES (?, ?, unix_time() + ?, 0)",
            (key, id, lease),
        )

    def owns(self, key: int) -> bool:
        """Tells whether a response runs on this replica."""
        row = self._execute(
            "SELECT 1 FROM runs WHERE object = ? AND owner = ?", (key, self._replica.id)
        ).fetchone()
        return row is not None

    def end(self, key: int) -> str | None:
        """Removes the row of a response, and returns who owned it."""
        row = self._execute("DELETE FROM runs WHERE object = ? RETURNING owner", (key,)).fetchone()
        return None if row is None else row[0]

    def request_cancel(self, key: int) -> str | None:
        """Takes note that a response is to be cancelled. Returns who owns it; None = nobody."""
        row = self._execute(
            "UPDATE runs SET cancel_requested = 1 WHERE object = ? RETURNING owner", (key,)
        ).fetchone()
        return None if row is None else row[0]

    def renew(self) -> list[OwnedResponse]:
        id, lease = self._replica
        rows = self._execute(
            "UPDATE runs SET lease_until = unix_time() + ? WHERE owner = ? RETURNING "
            "(SELECT tenant FROM objects WHERE key = object), "
            "(SELECT id FROM objects WHERE key = object), cancel_requested",
            (lease, id),
        )
        return [OwnedResponse(ResponseKey(tenant, id), bool(cancel)) for tenant, id, cancel in rows]

    def interrupt_expired(self) -> list[ResponseKey]:
        """Makes those INTERRUPTED whose leases have expired, and returns them. What somebody else
        is about to change is left for the next time."""
        rows = self._execute(
            "SELECT key FROM objects WHERE key IN "
            "(SELECT object FROM runs WHERE lease_until < unix_time()) "
            f"ORDER BY key {self._tables.locks.skip}"
        ).fetchall()
        return [self._interrupt(key) for (key,) in rows if self._has_expired(key)]

    def interrupt_own(self, key: int) -> bool:
        """Makes a response INTERRUPTED that this replica owns. Returns whether it does."""
        is_own = self.owns(key)
        if is_own:
            self.end(key)
            self._interrupt(key)
        return is_own

    def _has_expired(self, key: int) -> bool:
        """Removes the row of a response whose lease has not been renewed meanwhile."""
        row = self._execute(
            "DELETE FROM runs WHERE object = ? AND lease_until < unix_time() RETURNING object",
            (key,),
        ).fetchone()
        return row is not None

    def _interrupt(self, key: int) -> ResponseKey:
        row = self._execute(
            "UPDATE objects SET progress = ? WHERE key = ? RETURNING tenant, id",
            (ResponseProgress.INTERRUPTED, key),
        ).fetchone()
        return ResponseKey(*row)

    # Events

    def add_events(self, key: int, pack: EventPack) -> None:
        """Adds events, in place of a pack with the same first number.

        Raises:
            TooLarge: the response would become larger than one may be.
        """
        data = seal(pack.data)
        replaced = self._execute(
            "DELETE FROM event_packs WHERE object = ? AND first = ? RETURNING length(data)",
            (key, pack.first),
        ).fetchall()
        self._execute(
            "INSERT INTO event_packs (object, first, data) VALUES (?, ?, ?)",
            (key, pack.first, data),
        )
        size = OVERHEAD + len(data) - sum(OVERHEAD + length for (length,) in replaced)
        self._tables.grow(key, size)

    def events(self, key: int, start: int) -> Sequence[EventPack]:
        rows = self._execute(
            "SELECT first, data FROM event_packs WHERE object = ? AND first >= coalesce("
            "(SELECT max(first) FROM event_packs WHERE object = ? AND first <= ?), 0) "
            "ORDER BY first",
            (key, key, start),
        )
        return [EventPack(first, unseal(data)) for first, data in rows]
