"""Clients of a store that perform random operations and know the expected content after each of
them."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final, NamedTuple

from fastovms.state.operations import Operations
from fastovms.state.state_store import StateStore
from fastovms.state.store import Page, ResponseProgress, StoredItem, StoredResponse

TENANT: Final = "tenant"
_MAX_OBJECTS: Final = 10
_EVERYTHING: Final = Page(limit=10**6, ascending=True)
_SIZES: Final = (20, 200, 2_000, 10_000)


@dataclass(frozen=True, slots=True)
class Kept:
    """The expected state of an object: a response, or a conversation if `progress` is None."""

    body: bytes
    input: tuple[StoredItem, ...] = ()
    output: tuple[StoredItem, ...] = ()
    progress: ResponseProgress | None = None
    events: bytes | None = None

    def after_restart(self) -> Kept:
        is_running = self.progress is ResponseProgress.RUNNING
        return replace(self, progress=ResponseProgress.INTERRUPTED) if is_running else self


Contents = dict[str, Kept]
"""The objects of one client by id."""


class Step(NamedTuple):
    """The beginning of a client's operation with its changes, or its acknowledgement (None)."""

    client: int
    contents: Contents | None


class Client:
    """Performs one operation at a time on its own objects in `contents`.

    Args:
        note: called with each step when it begins and when it is acknowledged.
    """

    def __init__(self, number: int, random: Random, note: Callable[[Step], None]) -> None:
        self._number = number
        self._random = random
        self._note = note
        self._new_id = map(f"{number}-{{}}".format, itertools.count()).__next__
        self.contents: Contents = {}

    async def step(self, store: StateStore) -> None:
        choices = [self._add, self._add] if len(self.contents) < _MAX_OBJECTS else []
        if any(kept.progress is ResponseProgress.RUNNING for kept in self.contents.values()):
            choices += [self._finish] * 3
        if self._conversations():
            choices += [self._add_items, self._add_items, self._delete_item, self._update]
        if self.contents:
            choices += [self._delete]
        operation, changes = self._random.choice(choices)(store)
        after = {**self.contents, **changes}
        contents = {id: kept for id, kept in after.items() if kept is not None}
        self._note(Step(self._number, contents))
        await operation
        self._note(Step(self._number, None))
        self.contents = contents

    def restart(self) -> None:
        """Continues after the store was closed and opened again."""
        self.contents = {id: kept.after_restart() for id, kept in self.contents.items()}

    # Operations: each method returns the operation and the objects that it changes; None = deleted

    def _add(self, store: StateStore) -> tuple[Awaitable[object], dict[str, Kept | None]]:
        id = self._new_id()
        items = self._items()
        if self._random.random() < 0.3:
            body = self._text()
            return store.run(Operations.add_conversation, TENANT, id, body, items), {
                id: Kept(body, items)
            }
        is_running = self._random.random() < 0.5
        kept = Kept(
            self._text(),
            items,
            () if is_running else self._items(),
            ResponseProgress.RUNNING if is_running else ResponseProgress.FINISHED,
        )
        conversation_id = None if is_running else self._perhaps_a_conversation()
        operation = store.run(
            Operations.add_response, TENANT, _stored(id, kept), conversation_id=conversation_id
        )
        return operation, {id: kept, **self._appended(conversation_id, kept)}

    def _finish(self, store: StateStore) -> tuple[Awaitable[object], dict[str, Kept | None]]:
        running = [
            id for id, kept in self.contents.items() if kept.progress is ResponseProgress.RUNNING
        ]
        id = self._random.choice(running)
        kept = Kept(
            self._text(),
            self.contents[id].input,
            self._items(),
            ResponseProgress.FINISHED,
            self._text(),
        )
        conversation_id = self._perhaps_a_conversation()
        operation = store.run(
            Operations.finish_response, TENANT, _stored(id, kept), conversation_id=conversation_id
        )
        return operation, {id: kept, **self._appended(conversation_id, kept)}

    def _add_items(self, store: StateStore) -> tuple[Awaitable[object], dict[str, Kept | None]]:
        id = self._random.choice(self._conversations())
        kept = self.contents[id]
        items = self._items()
        after = replace(kept, input=kept.input + items)
        return store.run(Operations.add_items, TENANT, id, items), {id: after}

    def _delete_item(self, store: StateStore) -> tuple[Awaitable[object], dict[str, Kept | None]]:
        id = self._random.choice(self._conversations())
        kept = self.contents[id]
        item_id = self._random.choice([item.id for item in kept.input] or ["none"])
        left = tuple(item for item in kept.input if item.id != item_id)
        return store.run(Operations.delete_item, TENANT, id, item_id), {
            id: replace(kept, input=left)
        }

    def _update(self, store: StateStore) -> tuple[Awaitable[object], dict[str, Kept | None]]:
        id = self._random.choice(self._conversations())
        body = self._text()
        operation = store.run(Operations.update_conversation, TENANT, id, body)
        return operation, {id: replace(self.contents[id], body=body)}

    def _delete(self, store: StateStore) -> tuple[Awaitable[object], dict[str, Kept | None]]:
        id = self._random.choice(list(self.contents))
        is_response = self.contents[id].progress is not None
        delete = Operations.delete_response if is_response else Operations.delete_conversation
        return store.run(delete, TENANT, id), {id: None}

    # Random parts

    def _text(self) -> bytes:
        return self._random.randbytes(self._random.randrange(self._random.choice(_SIZES)))

    def _items(self) -> tuple[StoredItem, ...]:
        count = self._random.randrange(4)
        return tuple(StoredItem(self._new_id(), self._text()) for _ in range(count))

    def _conversations(self) -> list[str]:
        return [id for id, kept in self.contents.items() if kept.progress is None]

    def _perhaps_a_conversation(self) -> str | None:
        return self._random.choice([None, *self._conversations()])

    def _appended(self, conversation_id: str | None, response: Kept) -> dict[str, Kept]:
        if conversation_id is None:
            return {}
        kept = self.contents[conversation_id]
        items = kept.input + response.input + response.output
        return {conversation_id: replace(kept, input=items)}


async def find(store: StateStore, id: str) -> Kept | None:
    """Returns the stored object with an id."""
    response = await store.run(Operations.find_response, TENANT, id)
    if response is not None:
        page = await store.run(Operations.list_input, TENANT, id, _EVERYTHING)
        assert page is not None
        found = await store.run(Operations.find_events, TENANT, id, 0)
        assert found is not None
        events = b"".join(pack.data for pack in found.packs) if found.packs else None
        return Kept(
            response.body, tuple(page.items), tuple(response.output), response.progress, events
        )
    body = await store.run(Operations.find_conversation, TENANT, id)
    if body is None:
        return None
    page = await store.run(Operations.list_items, TENANT, id, _EVERYTHING)
    assert page is not None
    return Kept(body, tuple(page.items))


def _stored(id: str, kept: Kept) -> StoredResponse:
    assert kept.progress is not None
    return StoredResponse(
        id, kept.body, kept.input, kept.output, progress=kept.progress, events=kept.events
    )
