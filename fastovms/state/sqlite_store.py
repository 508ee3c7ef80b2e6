"""Implements `StateStore` over a `Database`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastovms.state.database import Database
from fastovms.state.disk_return import DiskReturn
from fastovms.state.state_worker import StateWorker
from fastovms.state.store import (
    EarlierItems,
    FoundResponse,
    ItemPage,
    Page,
    StateStats,
    StoredItem,
    StoredResponse,
)


class SqliteStore:
    """Implements `StateStore` over a `Database`.

    Args:
        disk_return: moves the state to the disk, if it is in memory only until that can be had.
        max_queued: how many operations may wait; who asks for more waits with them.
        timeout: seconds that an operation may take, its wait included.
    """

    def __init__(
        self,
        database: Database,
        disk_return: DiskReturn | None = None,
        *,
        max_queued: int = 1024,
        timeout: float = 30.0,
    ) -> None:
        self._worker = StateWorker(database, disk_return, max_queued=max_queued, timeout=timeout)
        self._run = self._worker.run

    def stats(self) -> StateStats:
        worker = self._worker
        return StateStats(
            *worker.totals, num_failures=worker.num_failures, is_on_disk=worker.is_on_disk
        )

    def trouble(self) -> str:
        """Returns why the state is in memory though it belongs on the disk; "" = it is where it
        belongs."""
        reason = self._worker.wants_disk
        return "" if reason is None else f"responses are kept in memory: {reason}"

    async def add_response(
        self, tenant: str, response: StoredResponse, *, conversation_id: str | None = None
    ) -> None:
        await self._run(lambda state: state.add_response(tenant, response, conversation_id))

    async def finish_response(
        self, tenant: str, response: StoredResponse, *, conversation_id: str | None = None
    ) -> bool:
        return await self._run(
            lambda state: state.finish_response(tenant, response, conversation_id)
        )

    async def find_response(self, tenant: str, id: str) -> FoundResponse | None:
        return await self._run(lambda state: state.find_response(tenant, id))

    async def response_events(self, tenant: str, id: str) -> bytes | None:
        return await self._run(lambda state: state.response_events(tenant, id))

    async def delete_response(self, tenant: str, id: str) -> bool:
        return await self._run(lambda state: state.delete_response(tenant, id))

    async def response_context(
        self, tenant: str, id: str, *, max_bytes: int
    ) -> EarlierItems | None:
        return await self._run(lambda state: state.response_context(tenant, id, max_bytes))

    async def list_input(self, tenant: str, id: str, page: Page) -> ItemPage | None:
        return await self._run(lambda state: state.list_input(tenant, id, page))

    async def add_conversation(
        self, tenant: str, id: str, body: bytes, items: Sequence[StoredItem]
    ) -> None:
        await self._run(lambda state: state.add_conversation(tenant, id, body, items))

    async def find_conversation(self, tenant: str, id: str) -> bytes | None:
        return await self._run(lambda state: state.find_conversation(tenant, id))

    async def update_conversation(self, tenant: str, id: str, body: bytes) -> bool:
        return await self._run(lambda state: state.update_conversation(tenant, id, body))

    async def delete_conversation(self, tenant: str, id: str) -> bool:
        return await self._run(lambda state: state.delete_conversation(tenant, id))

    async def add_items(self, tenant: str, id: str, items: Sequence[StoredItem]) -> bool:
        return await self._run(lambda state: state.add_items(tenant, id, items))

    async def conversation_context(
        self, tenant: str, id: str, *, max_bytes: int
    ) -> EarlierItems | None:
        return await self._run(lambda state: state.conversation_context(tenant, id, max_bytes))

    async def list_items(self, tenant: str, id: str, page: Page) -> ItemPage | None:
        return await self._run(lambda state: state.list_items(tenant, id, page))

    async def find_item(self, tenant: str, id: str, item_id: str) -> bytes | None:
        return await self._run(lambda state: state.find_item(tenant, id, item_id))

    async def delete_item(self, tenant: str, id: str, item_id: str) -> bool:
        return await self._run(lambda state: state.delete_item(tenant, id, item_id))

    async def find_items(self, tenant: str, item_ids: Sequence[str]) -> Mapping[str, bytes]:
        return await self._run(lambda state: state.find_items(tenant, item_ids))

    async def close(self) -> None:
        await self._worker.close()
