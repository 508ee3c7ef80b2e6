"""Implements `StateStore` by databases on threads of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from fastovms.state.running_responses import ONLY_REPLICA, Replica
from fastovms.state.state_database import StateDatabase
from fastovms.state.state_worker import StateWorker
from fastovms.state.store import (
    CutResponse,
    EarlierItems,
    EventPack,
    FoundEvents,
    FoundResponse,
    ItemPage,
    OwnedResponse,
    Page,
    ResponseKey,
    RunningResponse,
    StateStats,
    StoredItem,
    StoredResponse,
)
from fastovms.state.watchers import Watch, Watchers, response_topic


class ThreadedStore:
    """Implements `StateStore`. Operations that only read have threads of their own where there are
    databases for them, and do not wait for those that write.

    Args:
        database: where to write, and to read unless there are `readers`.
        more: further ones that lead to the same state.
        readers: those that lead to the same state, to read from.
        replica: what the databases know this process as.
        watchers: whom changes by other replicas wake, if there are others.
        max_queued: how many operations may wait; who asks for more waits with them.
        timeout: seconds that an operation may take, its wait included.
    """

    def __init__(
        self,
        database: StateDatabase,
        *more: StateDatabase,
        readers: Sequence[StateDatabase] = (),
        replica: Replica = ONLY_REPLICA,
        watchers: Watchers | None = None,
        max_queued: int = 1024,
        timeout: float = 30.0,
    ) -> None:
        self._database = database
        start = partial(StateWorker, max_queued=max_queued, timeout=timeout)
        writing = start([database, *more])
        reading = start(readers) if readers else writing
        self._workers = {writing, reading}
        self._write = writing.run
        self._read = reading.run
        self._replica = replica
        self._watchers = watchers or Watchers()

    def stats(self) -> StateStats:
        return StateStats(
            *self._database.totals,
            num_failures=sum(worker.num_failures for worker in self._workers),
            is_on_disk=self._database.is_on_disk,
        )

    def trouble(self) -> str:
        return self._database.trouble

    async def add_response(
        self, tenant: str, response: StoredResponse, *, conversation_id: str | None = None
    ) -> bool:
        return await self._write(
            lambda state: state.add_response(tenant, response, conversation_id)
        )

    async def finish_response(
        self, tenant: str, response: StoredResponse, *, conversation_id: str | None = None
    ) -> bool:
        return await self._write(
            lambda state: state.finish_response(tenant, response, conversation_id)
        )

    async def find_response(self, tenant: str, id: str) -> FoundResponse | None:
        return await self._read(lambda state: state.find_response(tenant, id))

    async def delete_response(self, tenant: str, id: str) -> bool:
        return await self._write(lambda state: state.delete_response(tenant, id))

    async def response_context(
        self, tenant: str, id: str, *, max_bytes: int
    ) -> EarlierItems | None:
        return await self._read(lambda state: state.response_context(tenant, id, max_bytes))

    async def list_input(self, tenant: str, id: str, page: Page) -> ItemPage | None:
        return await self._read(lambda state: state.list_input(tenant, id, page))

    @property
    def lease(self) -> float | None:
        return None if self._replica is ONLY_REPLICA else self._replica.lease

    async def add_events(self, tenant: str, id: str, pack: EventPack) -> bool:
        return await self._write(lambda state: state.add_events(tenant, id, pack))

    async def find_events(self, tenant: str, id: str, start: int) -> FoundEvents | None:
        return await self._read(lambda state: state.find_events(tenant, id, start))

    async def request_cancel(self, tenant: str, id: str) -> bool:
        runs = await self._write(lambda state: state.request_cancel(tenant, id))
        if runs:  # perhaps here, where the database tells nobody if there is one process
            self._watchers.wake(self._replica.id)
        return runs

    async def renew_leases(self) -> Sequence[OwnedResponse]:
        return await self._write(lambda state: state.renew_leases())

    async def give_up(self, keys: Sequence[ResponseKey]) -> None:
        await self._write(lambda state: state.give_up(keys))

    async def interrupt_expired(self, patience: float) -> None:
        await self._write(lambda state: state.interrupt_expired(patience))

    async def list_running(self, limit: int) -> Sequence[RunningResponse]:
        return await self._read(lambda state: state.list_running(limit))

    async def take_over(
        self,
        models: Sequence[str] | None,
        limit: int,
        tenants: Collection[str] | None = None,
    ) -> Sequence[OwnedResponse]:
        return await self._write(lambda state: state.take_over(models, limit, tenants))

    async def begin_attempt(self, tenant: str, id: str) -> CutResponse | None:
        return await self._write(lambda state: state.begin_attempt(tenant, id))

    def watch_response(self, tenant: str, id: str) -> AbstractContextManager[Watch]:
        return self._watchers.watch(response_topic(tenant, id))

    def watch_cancels(self) -> AbstractContextManager[Watch]:
        return self._watchers.watch(self._replica.id)

    async def add_conversation(
        self, tenant: str, id: str, body: bytes, items: Sequence[StoredItem]
    ) -> None:
        await self._write(lambda state: state.add_conversation(tenant, id, body, items))

    async def find_conversation(self, tenant: str, id: str) -> bytes | None:
        return await self._read(lambda state: state.find_conversation(tenant, id))

    async def list_conversations(self, tenant: str, page: Page) -> ItemPage:
        return await self._read(lambda state: state.list_conversations(tenant, page))

    async def update_conversation(self, tenant: str, id: str, body: bytes) -> bool:
        return await self._write(lambda state: state.update_conversation(tenant, id, body))

    async def delete_conversation(self, tenant: str, id: str) -> bool:
        return await self._write(lambda state: state.delete_conversation(tenant, id))

    async def add_items(self, tenant: str, id: str, items: Sequence[StoredItem]) -> bool:
        return await self._write(lambda state: state.add_items(tenant, id, items))

    async def conversation_context(
        self, tenant: str, id: str, *, max_bytes: int
    ) -> EarlierItems | None:
        return await self._read(lambda state: state.conversation_context(tenant, id, max_bytes))

    async def list_items(self, tenant: str, id: str, page: Page) -> ItemPage | None:
        return await self._read(lambda state: state.list_items(tenant, id, page))

    async def find_item(self, tenant: str, id: str, item_id: str) -> bytes | None:
        return await self._read(lambda state: state.find_item(tenant, id, item_id))

    async def delete_item(self, tenant: str, id: str, item_id: str) -> bool:
        return await self._write(lambda state: state.delete_item(tenant, id, item_id))

    async def find_items(self, tenant: str, item_ids: Sequence[str]) -> Mapping[str, bytes]:
        return await self._read(lambda state: state.find_items(tenant, item_ids))

    async def close(self) -> None:
        await self._watchers.close()
        for worker in self._workers:
            await worker.close()
