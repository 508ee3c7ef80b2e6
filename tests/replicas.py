"""Several replicas in one process that share a state: in PostgreSQL as real replicas do, or in
SQLite with notifications of the test."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

import psycopg

from fastovms.parts.postgres.database import DatabaseLink, PostgresDatabase
from fastovms.parts.postgres.schema import SharedTables
from fastovms.parts.postgres.server_address import ServerAddress
from fastovms.parts.postgres.shared_state import NotificationListener
from fastovms.state.database import StateBounds
from fastovms.state.operations import Operations
from fastovms.state.running_responses import Replica
from fastovms.state.sqlite.database import Database
from fastovms.state.state_store import StateStore
from fastovms.state.store import Watchers
from fastovms.state.tables import Clock, Tables

LEASE: Final = 8.0

BOUNDS: Final = StateBounds(1e9, 10**9, 10**12)

_TEST_TIME: Final = """
CREATE OR REPLACE FUNCTION unix_time() RETURNS double precision LANGUAGE sql VOLATILE AS
'SELECT CAST(current_setting(''test.clock'') AS double precision)'
"""


def use_test_time(address: ServerAddress) -> None:
    """Makes a PostgreSQL database with existing tables use the time of `tell_time`."""
    with psycopg.connect(**address.connection_parameters(), autocommit=True) as connection:
        connection.execute(_TEST_TIME)


def tell_time(tables: Tables, clock: Clock) -> None:
    """Sets the time of a transaction in a PostgreSQL database. SQLite uses the clock."""
    if isinstance(tables, SharedTables):
        tables.execute("SELECT set_config('test.clock', ?, true)", (str(clock()),))


class ReplicaStore(StateStore):
    """The store of one replica.

    Attributes:
        error: raised by every operation, also by a running one, as if the database were
            unreachable.
    """

    error: Exception | None = None

    async def run(self, operation: Callable[..., Any], *args: Any, **fields: Any) -> Any:
        self._raise_error()
        result = await self._run_shared(operation, *args, **fields)
        self._raise_error()
        return result

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    async def _run_shared(self, operation: Callable[..., Any], *args: Any, **fields: Any) -> Any:
        """Runs an operation on the state that all replicas share."""
        raise NotImplementedError

    def deafen(self) -> None:
        """Makes it miss all notifications from now on."""
        self._watchers.wake = lambda topic: None  # type: ignore[method-assign]


def replace_operation(
    store: StateStore, operation: Callable[..., Any], replacement: Callable[..., Any]
) -> Callable[..., Any]:
    """Replaces an operation of a store with a function, and returns the former one."""
    run = store.run

    async def replaced(asked: Callable[..., Any], *args: Any, **fields: Any) -> Any:
        if asked is operation:
            return await replacement(*args, **fields)
        return await run(asked, *args, **fields)

    store.run = replaced  # type: ignore[method-assign]
    return partial(run, operation)


class SharedState(Protocol):
    """A state that replicas share."""

    def replica(self, id: str) -> ReplicaStore: ...

    async def close(self) -> None: ...


class InSqlite:
    """Implements `SharedState` with one database, which each replica uses with its own name."""

    def __init__(self, clock: Clock) -> None:
        self.store = StateStore(Database(":memory:", BOUNDS, clock))
        self._replicas: list[ReplicaStore] = []

    def replica(self, id: str) -> ReplicaStore:
        self._replicas.append(_ReplicaInSqlite(self, id))
        return self._replicas[-1]

    def notify(self, topic: str) -> None:
        for replica in self._replicas:
            replica._watchers.wake(topic)

    async def close(self) -> None:
        await self.store.close()


class _ReplicaInSqlite(ReplicaStore):
    def __init__(self, shared: InSqlite, id: str) -> None:
        self._shared = shared
        self._replica = Replica(id, LEASE)
        self._watchers = Watchers()

    async def _run_shared(self, operation: Callable[..., Any], *args: Any, **fields: Any) -> Any:
        topics: list[str] = []
        result = await self._shared.store._writing.run(
            lambda state: operation(
                Operations(state._tables, self._replica, topics.append), *args, **fields
            )
        )
        for topic in topics:
            self._shared.notify(topic)
        return result


class InPostgres:
    """Implements `SharedState` with one connection per replica."""

    def __init__(self, address: ServerAddress, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._replicas: list[ReplicaStore] = []

    def replica(self, id: str) -> ReplicaStore:
        replica = Replica(id, LEASE)
        database = PostgresDatabase(
            DatabaseLink(self._address), BOUNDS, self._clock, replica=replica
        )
        database.connect()
        if not self._replicas:
            use_test_time(self._address)
        self._replicas.append(_ReplicaInPostgres(database, replica, self._address, self._clock))
        return self._replicas[-1]

    async def close(self) -> None:
        for replica in self._replicas:
            await replica.close()


class _ReplicaInPostgres(ReplicaStore):
    def __init__(
        self, database: PostgresDatabase, replica: Replica, address: ServerAddress, clock: Clock
    ) -> None:
        super().__init__(database, replica=replica, watchers=NotificationListener(address))
        self._clock = clock

    async def _run_shared(self, operation: Callable[..., Any], *args: Any, **fields: Any) -> Any:
        def operate(state: Operations) -> Any:
            tell_time(state._tables, self._clock)
            return operation(state, *args, **fields)

        return await self._writing.run(operate)
