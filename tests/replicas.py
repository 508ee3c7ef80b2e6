"""Several replicas in one process, which share a state in SQLite as real ones share one in
PostgreSQL: each has its own `StateStore`, with leases and notifications."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastovms.state.operations import Operations
from fastovms.state.running_responses import Replica
from fastovms.state.sqlite.database import Database
from fastovms.state.threaded_store import ThreadedStore
from fastovms.state.watchers import Watchers

LEASE = 8.0


class ReplicaStore(ThreadedStore):
    """The store of one replica.

    Attributes:
        error: raised in place of every operation, as if the database were gone.
        hears: whether it gets notifications.
    """

    def __init__(self, shared: SharedState, id: str) -> None:
        self._shared = shared
        self._replica = Replica(id, LEASE)
        self._watchers = Watchers()
        self._read = self._write = self._run  # type: ignore[assignment]
        self.error: Exception | None = None
        self.hears = True

    async def _run(self, operation: Callable[[Operations], Any]) -> Any:
        if self.error is not None:
            raise self.error
        topics: list[str] = []
        result = await self._shared.store._write(
            lambda state: operation(Operations(state._tables, self._replica, topics.append))
        )
        for topic in topics:
            self._shared.notify(topic)
        return result

    def hear(self, topic: str) -> None:
        if self.hears:
            self._watchers.wake(topic)


class SharedState:
    """The state that replicas share, and what is notified."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.store = ThreadedStore(database)
        self._replicas: list[ReplicaStore] = []

    def replica(self, id: str) -> ReplicaStore:
        self._replicas.append(ReplicaStore(self, id))
        return self._replicas[-1]

    def notify(self, topic: str) -> None:
        for replica in self._replicas:
            replica.hear(topic)

    async def close(self) -> None:
        await self.store.close()
