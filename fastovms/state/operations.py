"""Implements the store's operations on the tables of the state database, each within a
transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from fastovms.errors import StateFailed
from fastovms.state.running_responses import RunningOperations, reads
from fastovms.state.store import (
    EarlierItems,
    FoundResponse,
    ItemOrigin,
    ItemPage,
    Page,
    ResponseProgress,
    StoredItem,
    StoredResponse,
    UnknownPrevious,
    response_topic,
)
from fastovms.state.tables import MAX_CHAIN, ObjectKind


class Operations(RunningOperations):
    """The operations of one replica. `StateStore.run` runs each in its own transaction.

    Every operation may raise `errors.StateFailed`, and `errors.TooLarge` if an object becomes
    larger than allowed. None and False mean that the object does not exist. Reading an object
    counts as a use.
    """

    # Responses

    def add_response(
        self, tenant: str, response: StoredResponse, conversation_id: str | None = None
    ) -> bool:
        """Adds a response, and its items to its conversation if that still exists. A RUNNING
        response is owned by this replica. Returns False if the id exists already. Raises
        UnknownPrevious if a response in its chain is missing or the chain is circular, and TooLarge
        if the chain is too long."""
        if not self._insert(tenant, response, conversation_id):
            return False
        if response.previous_id is not None:
            # Checked after the insertion: if two servers add responses that continue each other,
            # the later one finds the circle or the missing response.
            last = self._tables.chain(tenant, response.id, MAX_CHAIN)[-1]
            if last.previous_id is not None:
                raise UnknownPrevious(last.previous_id)
        return True

    def finish_response(
        self, tenant: str, response: StoredResponse, conversation_id: str | None = None
    ) -> bool:
        """Replaces a response that runs on this replica by its final state; items as in
        `add_response`. Returns False if this replica does not run it: it was deleted, or its lease
        has expired."""
        if self._key_of_own(tenant, response.id) is None:
            return False
        self._tables.delete(tenant, ObjectKind.RESPONSE, response.id)
        self._insert(tenant, response, conversation_id)
        self._notify(response_topic(tenant, response.id))
        return True

    def _insert(self, tenant: str, response: StoredResponse, conversation_id: str | None) -> bool:
        key = self._tables.insert(
            tenant,
            ObjectKind.RESPONSE,
            response.id,
            response.body,
            [(ItemOrigin.INPUT, response.input), (ItemOrigin.OUTPUT, response.output)],
            progress=response.progress,
            previous_id=response.previous_id,
            events=response.events,
        )
        if key is None:
            return False
        if response.progress is ResponseProgress.RUNNING:
            self._start_run(key, response.resumption)
        if conversation_id is not None:
            key = self._key(tenant, ObjectKind.CONVERSATION, conversation_id, for_change=True)
            if key is not None:  # None: the conversation has been deleted
                self._tables.append(key, [*response.input, *response.output])
        return True

    @reads
    def find_response(self, tenant: str, id: str) -> FoundResponse | None:
        """Returns a stored response, or None if it does not exist. Counts as a use."""
        row = self._tables.find(tenant, ObjectKind.RESPONSE, id, "key, body, progress")
        if row is None:
            return None
        key, body, progress = cast("tuple[int, bytes, int]", row)
        self._tables.note_use([key])
        return FoundResponse(
            body, self._tables.items.of(key, ItemOrigin.OUTPUT), ResponseProgress(progress)
        )

    def delete_response(self, tenant: str, id: str) -> bool:
        """Deletes a response. Returns False if there is none."""
        key = self._key(tenant, ObjectKind.RESPONSE, id, for_change=True)
        if key is None:
            return False
        owner = self._end_run(key)
        if owner is not None:
            self._notify(owner)
            self._notify(response_topic(tenant, id))
        return self._tables.delete(tenant, ObjectKind.RESPONSE, id)

    @reads
    def response_context(self, tenant: str, id: str, max_bytes: int) -> EarlierItems | None:
        """Returns the newest input and output items of the response and its chain, up to
        `max_bytes`, or None if it does not exist. Counts as a use of all these responses. Raises
        TooLarge if the chain is too long to be continued."""
        chain = self._tables.chain(tenant, id, MAX_CHAIN - 1)  # leave room for the new response
        if not chain:
            return None
        keys = [link.key for link in chain]
        self._tables.note_use(keys)
        return self._tables.items.newest(keys, max_bytes)._replace(
            missing_id=chain[-1].previous_id, progress=chain[0].progress
        )

    @reads
    def list_input(self, tenant: str, id: str, page: Page) -> ItemPage | None:
        """Returns a page of the input of a response, including the input and output of earlier
        responses in its chain; None = no such response. Raises UnknownCursor if `page.after` is not
        the id of an item."""
        return self._page(tenant, ObjectKind.RESPONSE, id, page)

    # Conversations

    def add_conversation(
        self, tenant: str, id: str, body: bytes, items: Sequence[StoredItem]
    ) -> None:
        """Adds a conversation with its items. Raises StateFailed if the id exists already."""
        turns = [(ItemOrigin.INPUT, items)]
        key = self._tables.insert(tenant, ObjectKind.CONVERSATION, id, body, turns)
        if key is None:
            raise StateFailed(f"a conversation with the id '{id}' exists already")

    @reads
    def find_conversation(self, tenant: str, id: str) -> bytes | None:
        """Returns the JSON of a conversation; None if there is none. Counts as a use."""
        row = self._tables.find(tenant, ObjectKind.CONVERSATION, id, "key, body")
        if row is None:
            return None
        key, body = cast("tuple[int, bytes]", row)
        self._tables.note_use([key])
        return body

    @reads
    def list_conversations(self, tenant: str, page: Page) -> ItemPage:
        """Returns a page of the conversations, oldest first. Does not count as a use. Raises
        UnknownCursor if `page.after` is not the id of a conversation."""
        return self._tables.page(tenant, ObjectKind.CONVERSATION, page)

    def update_conversation(self, tenant: str, id: str, body: bytes) -> bool:
        """Replaces the JSON of a conversation. Returns False if there is none."""
        key = self._key(tenant, ObjectKind.CONVERSATION, id, for_change=True)
        if key is None:
            return False
        self._tables.replace_body(key, body)
        return True

    def delete_conversation(self, tenant: str, id: str) -> bool:
        """Deletes a conversation with its items. Returns False if there is none."""
        kind = ObjectKind.CONVERSATION
        return self._key(tenant, kind, id) is not None and self._tables.delete(tenant, kind, id)

    def add_items(self, tenant: str, id: str, items: Sequence[StoredItem]) -> bool:
        """Adds items to a conversation. Returns False if there is no such conversation."""
        key = self._key(tenant, ObjectKind.CONVERSATION, id, for_change=True)
        if key is None:
            return False
        self._tables.append(key, items)
        return True

    @reads
    def conversation_context(self, tenant: str, id: str, max_bytes: int) -> EarlierItems | None:
        """Returns the newest items of a conversation, up to `max_bytes`; None if there is no such
        conversation."""
        key = self._key(tenant, ObjectKind.CONVERSATION, id)
        return None if key is None else self._tables.items.newest([key], max_bytes)

    @reads
    def list_items(self, tenant: str, id: str, page: Page) -> ItemPage | None:
        """Returns a page of the items of a conversation; None = no such conversation. Raises
        UnknownCursor if `page.after` is not the id of an item."""
        return self._page(tenant, ObjectKind.CONVERSATION, id, page)

    @reads
    def find_item(self, tenant: str, id: str, item_id: str) -> bytes | None:
        """Returns the JSON of an item of a conversation; None if there is none."""
        key = self._key(tenant, ObjectKind.CONVERSATION, id)
        return None if key is None else self._tables.items.find(key, item_id)

    def delete_item(self, tenant: str, id: str, item_id: str) -> bool:
        """Deletes an item of a conversation. Returns False if there is none."""
        key = self._key(tenant, ObjectKind.CONVERSATION, id, for_change=True)
        return key is not None and self._tables.delete_item(key, item_id)

    # Items of responses and of conversations

    @reads
    def find_items(self, tenant: str, item_ids: Sequence[str]) -> Mapping[str, bytes]:
        """Returns the newest item of each id; missing ids are left out."""
        return self._tables.items.find_all(tenant, item_ids)

    def _page(self, tenant: str, kind: ObjectKind, id: str, page: Page) -> ItemPage | None:
        key = self._key(tenant, kind, id)
        return None if key is None else self._tables.items.page(key, page)

    def _key(
        self, tenant: str, kind: ObjectKind, id: str, *, for_change: bool = False
    ) -> int | None:
        """Returns the key of an object and records its use; None = no such object."""
        row = self._tables.find(tenant, kind, id, "key", for_change=for_change)
        if row is None:
            return None
        key = cast("int", row[0])
        self._tables.note_use([key])
        return key
