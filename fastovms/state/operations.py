"""Implements the store's operations on the tables of the state database, each within a
transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from fastovms.state.store import (
    EarlierItems,
    FoundResponse,
    ItemOrigin,
    ItemPage,
    Page,
    ResponseProgress,
    StoredItem,
    StoredResponse,
)
from fastovms.state.tables import ObjectKind, Tables


class Operations:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    # Responses

    def add_response(
        self, tenant: str, response: StoredResponse, conversation_id: str | None
    ) -> None:
        tables = self._tables
        tables.delete(tenant, ObjectKind.RESPONSE, response.id)
        tables.insert(
            tenant,
            ObjectKind.RESPONSE,
            response.id,
            response.body,
            [(ItemOrigin.INPUT, response.input), (ItemOrigin.OUTPUT, response.output)],
            progress=response.progress,
            previous_id=response.previous_id,
            events=response.events,
        )
        if conversation_id is not None:
            self.add_items(tenant, conversation_id, [*response.input, *response.output])

    def finish_response(
        self, tenant: str, response: StoredResponse, conversation_id: str | None
    ) -> bool:
        row = self._tables.find(
            tenant, ObjectKind.RESPONSE, response.id, "progress", for_change=True
        )
        if row is None or row[0] != ResponseProgress.RUNNING:
            return False
        self.add_response(tenant, response, conversation_id)
        return True

    def find_response(self, tenant: str, id: str) -> FoundResponse | None:
        row = self._tables.find(tenant, ObjectKind.RESPONSE, id, "key, body, progress")
        if row is None:
            return None
        key, body, progress = cast("tuple[int, bytes, int]", row)
        self._tables.note_use([key])
        return FoundResponse(
            body, self._tables.items.of(key, ItemOrigin.OUTPUT), ResponseProgress(progress)
        )

    def response_events(self, tenant: str, id: str) -> bytes | None:
        row = self._tables.find(tenant, ObjectKind.RESPONSE, id, "events")
        return None if row is None else cast("bytes | None", row[0])

    def delete_response(self, tenant: str, id: str) -> bool:
        return self._tables.delete(tenant, ObjectKind.RESPONSE, id)

    def response_context(self, tenant: str, id: str, max_bytes: int) -> EarlierItems | None:
        chain = self._tables.chain(tenant, id)
        if not chain:
            return None
        keys = [link.key for link in chain]
        self._tables.note_use(keys)
        return self._tables.items.newest(keys, max_bytes)._replace(
            missing_id=chain[-1].previous_id, progress=chain[0].progress
        )

    def list_input(self, tenant: str, id: str, page: Page) -> ItemPage | None:
        return self._page(tenant, ObjectKind.RESPONSE, id, page)

    # Conversations

    def add_conversation(
        self, tenant: str, id: str, body: bytes, items: Sequence[StoredItem]
    ) -> None:
        turns = [(ItemOrigin.INPUT, items)]
        self._tables.insert(tenant, ObjectKind.CONVERSATION, id, body, turns)

    def find_conversation(self, tenant: str, id: str) -> bytes | None:
        row = self._tables.find(tenant, ObjectKind.CONVERSATION, id, "key, body")
        if row is None:
            return None
        key, body = cast("tuple[int, bytes]", row)
        self._tables.note_use([key])
        return body

    def update_conversation(self, tenant: str, id: str, body: bytes) -> bool:
        key = self._key(tenant, ObjectKind.CONVERSATION, id, for_change=True)
        if key is None:
            return False
        self._tables.replace_body(key, body)
        return True

    def delete_conversation(self, tenant: str, id: str) -> bool:
        return self._tables.delete(tenant, ObjectKind.CONVERSATION, id)

    def add_items(self, tenant: str, id: str, items: Sequence[StoredItem]) -> bool:
        key = self._key(tenant, ObjectKind.CONVERSATION, id, for_change=True)
        if key is None:
            return False
        self._tables.append(key, items)
        return True

    def conversation_context(self, tenant: str, id: str, max_bytes: int) -> EarlierItems | None:
        key = self._key(tenant, ObjectKind.CONVERSATION, id)
        return None if key is None else self._tables.items.newest([key], max_bytes)

    def list_items(self, tenant: str, id: str, page: Page) -> ItemPage | None:
        return self._page(tenant, ObjectKind.CONVERSATION, id, page)

    def find_item(self, tenant: str, id: str, item_id: str) -> bytes | None:
        key = self._key(tenant, ObjectKind.CONVERSATION, id)
        return None if key is None else self._tables.items.find(key, item_id)

    def delete_item(self, tenant: str, id: str, item_id: str) -> bool:
        key = self._key(tenant, ObjectKind.CONVERSATION, id, for_change=True)
        return key is not None and self._tables.delete_item(key, item_id)

    # Items of either

    def find_items(self, tenant: str, item_ids: Sequence[str]) -> Mapping[str, bytes]:
        return self._tables.items.find_all(tenant, item_ids)

    def _page(self, tenant: str, kind: ObjectKind, id: str, page: Page) -> ItemPage | None:
        key = self._key(tenant, kind, id)
        return None if key is None else self._tables.items.page(key, page)

    def _key(
        self, tenant: str, kind: ObjectKind, id: str, *, for_change: bool = False
    ) -> int | None:
        """Returns the key of an object, and takes note that it is used."""
        row = self._tables.find(tenant, kind, id, "key", for_change=for_change)
        if row is None:
            return None
        key = cast("int", row[0])
        self._tables.note_use([key])
        return key
