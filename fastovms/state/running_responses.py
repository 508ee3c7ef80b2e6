"""Operations on running responses: their owner, lease and events so far. Leases use the database's
clock, `unix_time()`, because replicas' clocks may differ.

A transaction that changes a running response locks its object first, to avoid deadlocks; renewals
of leases do not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, TypeVar, cast

from fastovms.state.store import (
    EventPack,
    FoundEvents,
    InterruptedResponse,
    ItemOrigin,
    OwnedResponse,
    ResponseKey,
    ResponseProgress,
    Resumption,
    RunningResponse,
    response_topic,
)
from fastovms.state.tables import (
    MAX_VARIABLES,
    OVERHEAD,
    ObjectKind,
    Tables,
    marks,
    seal,
    slices,
    unseal,
)

Reading = TypeVar("Reading", bound=Callable[..., object])


def reads(operation: Reading) -> Reading:
    """Marks an operation as read-only: it does not wait for writing operations."""
    operation.reads = True  # type: ignore[attr-defined]
    return operation


class Replica(NamedTuple):
    """A process that runs responses.

    Attributes:
        id: a random unique id.
        lease: seconds after which the replica loses a response if it does not renew the lease.
    """

    id: str
    lease: float


ONLY_REPLICA: Final = Replica("", float("inf"))
"""The replica of a process that alone uses the database."""


def _model_of(resumption: Resumption | None) -> str:
    return "" if resumption is None else resumption.model


class RunningOperations:
    """The operations of one replica on running responses.

    Args:
        notify: notifies the replicas that wait for a topic once the transaction is committed.
    """

    def __init__(
        self,
        tables: Tables,
        replica: Replica = ONLY_REPLICA,
        notify: Callable[[str], None] = lambda topic: None,
    ) -> None:
        self._tables = tables
        self._execute = tables.execute
        self._replica = replica
        self._notify = notify

    def add_events(self, tenant: str, id: str, pack: EventPack) -> bool:
        """Adds a pack of events of a response that runs on this replica, or replaces the pack with
        the same first number. Returns False if this replica does not run the response."""
        key = self._key_of_own(tenant, id)
        if key is None:
            return False
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
        self._notify(response_topic(tenant, id))
        return True

    @reads
    def find_events(self, tenant: str, id: str, start: int) -> FoundEvents | None:
        """Returns the packs with the events from number `start` on, without the model's output. The
        first pack may begin earlier. If there are no such events yet, at most one pack is returned.
        None = no such response."""
        row = self._tables.find(tenant, ObjectKind.RESPONSE, id, "key, progress, events")
        if row is None:
            return None
        key, progress, events = cast("tuple[int, int, bytes | None]", row)
        if events is not None:
            return FoundEvents(ResponseProgress(progress), [EventPack(0, events)])
        rows = self._execute(
            "SELECT first, data FROM event_packs WHERE object = ? AND first >= coalesce("
            "(SELECT max(first) FROM event_packs WHERE object = ? AND first <= ?), 0) "
            "ORDER BY first",
            (key, key, start),
        )
        packs = [EventPack(first, unseal(data)) for first, data in rows]
        return FoundEvents(ResponseProgress(progress), packs)

    def set_resumption(self, tenant: str, id: str, resumption: Resumption | None) -> bool:
        """Replaces the `Resumption` of a response that runs on this replica; None = it can no
        longer be resumed. Returns False if this replica does not run the response."""
        key = self._key_of_own(tenant, id)
        if key is None:
            return False
        old = self._execute("DELETE FROM jobs WHERE object = ? RETURNING length(job)", (key,))
        freed = sum(OVERHEAD + length for (length,) in old.fetchall())
        self._execute("UPDATE runs SET model = ? WHERE object = ?", (_model_of(resumption), key))
        self._tables.grow(key, self._add_job(key, resumption) - freed)
        return True

    def request_cancel(self, tenant: str, id: str) -> bool:
        """Asks the replica that runs a response to cancel it. Returns False if no replica runs
        it."""
        row = self._execute(
            "UPDATE runs SET cancel_requested = 1 WHERE object = ? RETURNING owner",
            (self._key_for_change(tenant, id),),
        ).fetchone()
        if row is None:
            return False
        self._notify(row[0])
        return True

    def renew_leases(self) -> Sequence[OwnedResponse]:
        """Renews the leases of all responses that this replica owns and returns these responses."""
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

    def give_up(self, keys: Sequence[ResponseKey]) -> None:
        """Releases responses that this replica owns, so that other replicas can take over.
        Responses without a `Resumption` become INTERRUPTED."""
        for tenant, id in keys:
            key = self._key_for_change(tenant, id)
            row = self._execute(
                "UPDATE runs SET owner = '', lease_until = unix_time() "
                "WHERE object = ? AND owner = ? RETURNING model",
                (key, self._replica.id),
            ).fetchone()
            if key is None or row is None:
                continue
            if row == ("",):
                self._end_run(key)
                self._interrupt(key)
            self._notify(response_topic(tenant, id))

    def interrupt_expired(self, patience: float) -> None:
        """Sets responses with expired leases to INTERRUPTED, whichever replica owned them. A
        response with a `Resumption` is interrupted only `patience` seconds after expiry. Rows that
        other transactions lock are skipped."""
        rows = self._execute(
            "SELECT key FROM objects WHERE key IN (SELECT object FROM runs "
            "WHERE lease_until < unix_time() - CASE model WHEN '' THEN 0 ELSE ? END) "
            f"ORDER BY key {self._tables.locks.skip}",
            (patience,),
        ).fetchall()
        for (key,) in rows:
            if self._has_expired(key):
                tenant, id = self._interrupt(key)
                self._notify(response_topic(tenant, id))

    @reads
    def list_running(self, limit: int) -> Sequence[RunningResponse]:
        """Returns the running responses of all tenants on all replicas, oldest first."""
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
    ) -> Sequence[OwnedResponse]:
        """Takes over resumable responses whose leases have expired. If several replicas call this,
        each response goes to only one.

        Args:
            models: the identities of the models served here; None = any model.
            limit: the maximum number of responses; those with the fewest attempts, then the oldest,
                come first.
            tenants: the tenants whose responses are resumed; None = all. Responses of other tenants
                are taken over only to be cancelled.
        """
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

    def begin_attempt(self, tenant: str, id: str) -> InterruptedResponse | None:
        """Counts an attempt to resume a response that this replica owns, and returns its stored
        data; None = not owned, or not resumable."""
        key = self._key_of_own(tenant, id)
        if key is None:
            return None
        job, num_attempts, cancel_requested = self._execute(
            "UPDATE runs SET attempts = attempts + 1 WHERE object = ? "
            "RETURNING (SELECT job FROM jobs WHERE jobs.object = runs.object), attempts, "
            "cancel_requested",
            (key,),
        ).fetchone()
        if job is None:
            return None
        row = self._tables.find(tenant, ObjectKind.RESPONSE, id, "body, previous_id")
        body, previous_id = cast("tuple[bytes, str | None]", row)
        rows = self._execute(
            "SELECT first, data, outputs FROM event_packs WHERE object = ? ORDER BY first", (key,)
        )
        packs = [
            EventPack(first, unseal(data), None if outputs is None else unseal(outputs))
            for first, data, outputs in rows
        ]
        input = self._tables.items.of(key, ItemOrigin.INPUT)
        is_cancelled = bool(cancel_requested)
        return InterruptedResponse(
            body, input, previous_id, unseal(job), packs, num_attempts, is_cancelled
        )

    def _key_for_change(self, tenant: str, id: str) -> int | None:
        """Returns the key of a response and locks its row, without counting a use; None = no such
        response."""
        row = self._tables.find(tenant, ObjectKind.RESPONSE, id, "key", for_change=True)
        return None if row is None else cast("int", row[0])

    def _key_of_own(self, tenant: str, id: str) -> int | None:
        """Returns the key of a response; None = it does not run on this replica."""
        key = self._key_for_change(tenant, id)
        row = self._execute(
            "SELECT 1 FROM runs WHERE object = ? AND owner = ?", (key, self._replica.id)
        ).fetchone()
        return None if row is None else key

    def _start_run(self, key: int, resumption: Resumption | None) -> None:
        """Makes this replica the owner of a newly added response."""
        id, lease = self._replica
        self._execute(
            "INSERT INTO runs (object, owner, lease_until, cancel_requested, model) "
            "VALUES (?, ?, unix_time() + ?, 0, ?)",
            (key, id, lease, _model_of(resumption)),
        )
        self._tables.grow(key, self._add_job(key, resumption))

    def _end_run(self, key: int) -> str | None:
        """Removes the run of a response and returns its owner, or None if there was no run."""
        row = self._execute("DELETE FROM runs WHERE object = ? RETURNING owner", (key,)).fetchone()
        return None if row is None else row[0]

    def _add_job(self, key: int, resumption: Resumption | None) -> int:
        """Stores the data to resume a response. Returns their size in bytes."""
        if resumption is None:
            return 0
        job = seal(resumption.job)
        self._execute("INSERT INTO jobs (object, job) VALUES (?, ?)", (key, job))
        return OVERHEAD + len(job)

    def _take(self, key: int, response: ResponseKey) -> OwnedResponse | None:
        """Makes this replica the owner of a response; None = its lease has been renewed."""
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
        """Removes the run of a response, unless its lease has been renewed. Returns whether it was
        removed."""
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
