"""Reads and writes the rows of running responses: their owner, lease and events so far. Leases use
`unix_time()`, the database's clock, because replicas' clocks may differ.

A transaction that changes a running response locks its object first, to avoid deadlocks, except for
renewals.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from fastovms.state.store import (
    EventPack,
    OwnedResponse,
    ResponseKey,
    ResponseProgress,
    Resumption,
    RunningResponse,
)
from fastovms.state.tables import MAX_VARIABLES, OVERHEAD, Tables, marks, seal, slices, unseal


class Replica(NamedTuple):
    """A process that runs responses.

    Attributes:
        id: a random unique id.
        lease: seconds after which the replica loses a response if it does not renew the lease.
    """

    id: str
    lease: float


ONLY_REPLICA: Final = Replica("", float("inf"))
"""A placeholder for the process where no other one uses the database."""


def _model_of(resumption: Resumption | None) -> str:
    return "" if resumption is None else resumption.model


class RunningResponses:
    """The rows of running responses, as one replica sees them."""

    def __init__(self, tables: Tables, replica: Replica) -> None:
        self._tables = tables
        self._execute = tables.execute
        self._replica = replica

    def start(self, key: int, resumption: Resumption | None) -> None:
        """Makes this replica the owner of a response that was just added. Raises TooLarge if the
        response would exceed the size limit."""
        id, lease = self._replica
        self._execute(
            "INSERT INTO runs (object, owner, lease_until, cancel_requested, model) "
            "VALUES (?, ?, unix_time() + ?, 0, ?)",
            (key, id, lease, _model_of(resumption)),
        )
        self._tables.grow(key, self._add_job(key, resumption))

    def set_resumption(self, key: int, resumption: Resumption | None) -> None:
        """Sets or replaces the data to resume a response. Raises TooLarge if the response would
        exceed the size limit."""
        old = self._execute("DELETE FROM jobs WHERE object = ? RETURNING length(job)", (key,))
        freed = sum(OVERHEAD + length for (length,) in old.fetchall())
        self._execute("UPDATE runs SET model = ? WHERE object = ?", (_model_of(resumption), key))
        self._tables.grow(key, self._add_job(key, resumption) - freed)

    def _add_job(self, key: int, resumption: Resumption | None) -> int:
        """Stores the data to resume a response. Returns the bytes that they take."""
        if resumption is None:
            return 0
        job = seal(resumption.job)
        self._execute("INSERT INTO jobs (object, job) VALUES (?, ?)", (key, job))
        return OVERHEAD + len(job)

    def owns(self, key: int) -> bool:
        """Returns whether a response runs on this replica."""
        row = self._execute(
            "SELECT 1 FROM runs WHERE object = ? AND owner = ?", (key, self._replica.id)
        ).fetchone()
        return row is not None

    def end(self, key: int) -> str | None:
        """Removes the row of a response and returns its owner."""
        row = self._execute("DELETE FROM runs WHERE object = ? RETURNING owner", (key,)).fetchone()
        return None if row is None else row[0]

    def request_cancel(self, key: int) -> str | None:
        """Records that a response must be cancelled. Returns its owner; None = no replica."""
        row = self._execute(
            "UPDATE runs SET cancel_requested = 1 WHERE object = ? RETURNING owner", (key,)
        ).fetchone()
        return None if row is None else row[0]

    def renew(self) -> list[OwnedResponse]:
        id, lease = self._replica
        rows = self._execute(
            "UPDATE runs SET lease_until = unix_time() + ? WHERE owner = ? RETURNING "
            "(SELECT tenant FROM objects WHERE key = object), "
            "(SELECT id FROM objects WHERE key = object), cancel_requested, model, attempts",
            (lease, id),
        )
        return [
            OwnedResponse(ResponseKey(tenant, id), bool(cancel), model, num_attempts)
            for tenant, id, cancel, model, num_attempts in rows
        ]

    def interrupt_expired(self, patience: float) -> list[ResponseKey]:
        """Sets the state of responses whose leases have expired to INTERRUPTED, and returns their
        keys. A resumable response is interrupted only `patience` seconds later, so that another
        server can take it over. A row that another transaction locks is skipped."""
        rows = self._execute(
            "SELECT key FROM objects WHERE key IN (SELECT object FROM runs "
            "WHERE lease_until < unix_time() - CASE model WHEN '' THEN 0 ELSE ? END) "
            f"ORDER BY key {self._tables.locks.skip}",
            (patience,),
        ).fetchall()
        return [self._interrupt(key) for (key,) in rows if self._has_expired(key)]

    def give_up(self, key: int) -> bool:
        """Releases a response that this replica owns, or sets it to INTERRUPTED if it cannot be
        resumed. Returns whether the replica owns it."""
        row = self._execute(
            "UPDATE runs SET owner = '', lease_until = unix_time() WHERE object = ? AND owner = ? "
            "RETURNING model",
            (key, self._replica.id),
        ).fetchone()
        if row == ("",):
            self.end(key)
            self._interrupt(key)
        return row is not None

    def all(self, limit: int) -> list[RunningResponse]:
        """Returns the running responses of all tenants, oldest first."""
        rows = self._execute(
            "SELECT tenant, id, model, lease_until >= unix_time() FROM runs "
            "JOIN objects ON key = object ORDER BY key LIMIT ?",
            (limit,),
        ).fetchall()
        return [
            RunningResponse(ResponseKey(tenant, id), model, bool(has_owner))
            for tenant, id, model, has_owner in rows
        ]

    def take_over(
        self, models: Sequence[str] | None, limit: int, tenants: Collection[str] | None = None
    ) -> list[OwnedResponse]:
        """Takes over responses whose leases have expired, and returns them: responses of these
        tenants (None = all), and responses to cancel."""
        if models is not None and not models:
            return []
        is_served = "model <> ''" if models is None else f"model IN ({marks(models)})"
        known = [None] if tenants is None else slices(sorted(tenants), MAX_VARIABLES // 2)
        taken: list[OwnedResponse | None] = []
        for some in known:
            of_tenants = "1 = 1" if some is None else f"tenant IN ({marks(some)})"
            rows = self._execute(
                "SELECT key, tenant, id FROM objects WHERE key IN "
                f"(SELECT object FROM runs WHERE lease_until < unix_time() AND {is_served} "
                f"AND ({of_tenants} OR cancel_requested = 1)) "
                "ORDER BY (SELECT attempts FROM runs WHERE object = key), key "
                f"LIMIT ? {self._tables.locks.skip}",
                (*(models or ()), *(some or ()), limit - len(taken)),
            ).fetchall()
            taken += (self._take(key, ResponseKey(tenant, id)) for key, tenant, id in rows)
        return [response for response in taken if response is not None]

    def begin_attempt(self, key: int) -> tuple[bytes, int, bool] | None:
        """Counts an attempt to resume a response that this replica owns. Returns its job, the
        number of attempts since the last model output, and whether it must be cancelled; None = it
        has no job."""
        row = self._execute(
            "UPDATE runs SET attempts = attempts + 1 WHERE object = ? AND owner = ? "
            "RETURNING (SELECT job FROM jobs WHERE jobs.object = runs.object), attempts, "
            "cancel_requested",
            (key, self._replica.id),
        ).fetchone()
        if row is None or row[0] is None:
            return None
        job, num_attempts, cancel_requested = row
        return unseal(job), num_attempts, bool(cancel_requested)

    def _take(self, key: int, response: ResponseKey) -> OwnedResponse | None:
        """Makes this replica the owner of a response, unless its lease has been renewed
        meanwhile."""
        id, lease = self._replica
        row = self._execute(
            "UPDATE runs SET owner = ?, lease_until = unix_time() + ? "
            "WHERE object = ? AND lease_until < unix_time() "
            "RETURNING cancel_requested, model, attempts",
            (id, lease, key),
        ).fetchone()
        if row is None:
            return None
        cancel_requested, model, num_attempts = row
        return OwnedResponse(response, bool(cancel_requested), model, num_attempts)

    def _has_expired(self, key: int) -> bool:
        """Removes the row of a response, unless its lease has been renewed meanwhile. Returns
        whether it was removed."""
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
        """Adds events, in place of a pack with the same first number. Raises TooLarge if the
        response would exceed the size limit."""
        data, outputs = seal(pack.data), seal(pack.outputs)
        replaced = self._execute(
            "DELETE FROM event_packs WHERE object = ? AND first = ? "
            "RETURNING length(data) + coalesce(length(outputs), 0)",
            (key, pack.first),
        ).fetchall()
        self._execute(
            "INSERT INTO event_packs (object, first, data, outputs) VALUES (?, ?, ?, ?)",
            (key, pack.first, data, outputs),
        )
        if outputs is not None:
            self._execute("UPDATE runs SET attempts = 0 WHERE object = ? AND attempts > 0", (key,))
        size = OVERHEAD + len(data) + len(outputs or b"")
        self._tables.grow(key, size - sum(OVERHEAD + length for (length,) in replaced))

    def packs(self, key: int) -> Sequence[EventPack]:
        """Returns all packs including the model's output."""
        rows = self._execute(
            "SELECT first, data, outputs FROM event_packs WHERE object = ? ORDER BY first", (key,)
        )
        return [
            EventPack(first, unseal(data), None if outputs is None else unseal(outputs))
            for first, data, outputs in rows
        ]

    def events(self, key: int, start: int) -> Sequence[EventPack]:
        """Returns the packs from the one with event `start` on, without the model's output."""
        rows = self._execute(
            "SELECT first, data FROM event_packs WHERE object = ? AND first >= coalesce("
            "(SELECT max(first) FROM event_packs WHERE object = ? AND first <= ?), 0) "
            "ORDER BY first",
            (key, key, start),
        )
        return [EventPack(first, unseal(data)) for first, data in rows]
