"""Declares `StateStore`, what the API asks of whatever keeps responses and conversations.

Objects are JSON texts that the store does not read, with items in an order. Each belongs to a
tenant, and is not there for any other. An operation that changes something returns when the change
will survive the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, Protocol


class StoredItem(NamedTuple):
    """One item of a response or a conversation. `body` is its JSON text, the id included. Ids need
    not be unique: a client may send an item back under the id that it got it with."""

    id: str
    body: bytes


class ResponseProgress(IntEnum):
    """How far a response has come. INTERRUPTED = it was RUNNING when a process ended."""

    RUNNING = 0
    FINISHED = 1
    INTERRUPTED = 2


class ItemOrigin(Enum):
    """Tells the items that a response was given from those that it has made."""

    INPUT = 0
    OUTPUT = 1


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response with its items.

    Attributes:
        body: a JSON object without its output.
        input, output: its items; `input` without those of the responses before it.
        previous_id: the response that it continues.
        events: everything a stream of it has sent, in whatever form the API likes.
    """

    id: str
    body: bytes
    input: Sequence[StoredItem] = ()
    output: Sequence[StoredItem] = ()
    previous_id: str | None = None
    progress: ResponseProgress = ResponseProgress.FINISHED
    events: bytes | None = None


class FoundResponse(NamedTuple):
    """A stored response as far as it is told: without its input, which may be long."""

    body: bytes
    output: Sequence[StoredItem]
    progress: ResponseProgress


class EarlierItems(NamedTuple):
    """What came before a response: the items, the oldest first.

    Attributes:
        is_whole: False = older items were left out, as asked.
        missing_id: a response that it builds on and that is no longer there; None = all are.
        progress: that of the response asked for, or FINISHED.
    """

    items: Sequence[StoredItem]
    is_whole: bool = True
    missing_id: str | None = None
    progress: ResponseProgress = ResponseProgress.FINISHED


class Page(NamedTuple):
    """Says which items to list.

    Attributes:
        after: id of the item before the first one; None = from the beginning (or the end).
    """

    limit: int
    ascending: bool
    after: str | None = None


class ItemPage(NamedTuple):
    items: Sequence[StoredItem]
    has_more: bool


class StateStats(NamedTuple):
    """The numbers of a store.

    Attributes:
        num_objects: how many responses and conversations there are.
        num_bytes: the bytes of all of them, as the bound counts them.
        num_failures: how many operations the disk or the database has failed.
        is_on_disk: whether what is kept outlives the process.
    """

    num_objects: int
    num_bytes: int
    num_failures: int
    is_on_disk: bool


class UnknownCursor(Exception):
    """`Page.after` is none of the items."""


class StateStore(Protocol):
    """Keeps responses and conversations. Every method may raise `errors.StateFailed`, and
    `errors.TooLarge` where an object becomes larger than one may be; None and False mean: no such
    object. Whatever reads an object is a use of it."""

    def stats(self) -> StateStats: ...

    def trouble(self) -> str:
        """Says why the state is not where it belongs, and for whom that matters; "" = it is."""

    # Responses

    async def add_response(
        self, tenant: str, response: StoredResponse, *, conversation_id: str | None = None
    ) -> None:
        """Adds it, in place of an older one of the same id. Its items are appended to the
        conversation as well, if that is still there."""

    async def finish_response(
        self, tenant: str, response: StoredResponse, *, conversation_id: str | None = None
    ) -> bool:
        """Does what `add_response` does, in place of one that was added as RUNNING and has not been
        deleted."""

    async def find_response(self, tenant: str, id: str) -> FoundResponse | None: ...

    async def response_events(self, tenant: str, id: str) -> bytes | None: ...

    async def delete_response(self, tenant: str, id: str) -> bool: ...

    async def response_context(
        self, tenant: str, id: str, *, max_bytes: int
    ) -> EarlierItems | None:
        """Returns the input and output of the response and of all that it continues, of these the
        newest that have no more than `max_bytes` together. It is a use of all of them."""

    async def list_input(self, tenant: str, id: str, page: Page) -> ItemPage | None:
        """Returns a page of the input of a response, with that of the responses before it.

        Raises:
            UnknownCursor: `page.after` is none of the items.
        """

    # Conversations

    async def add_conversation(
        self, tenant: str, id: str, body: bytes, items: Sequence[StoredItem]
    ) -> None: ...

    async def find_conversation(self, tenant: str, id: str) -> bytes | None: ...

    async def update_conversation(self, tenant: str, id: str, body: bytes) -> bool: ...

    async def delete_conversation(self, tenant: str, id: str) -> bool: ...

    async def add_items(self, tenant: str, id: str, items: Sequence[StoredItem]) -> bool: ...

    async def conversation_context(
        self, tenant: str, id: str, *, max_bytes: int
    ) -> EarlierItems | None: ...

    async def list_items(self, tenant: str, id: str, page: Page) -> ItemPage | None:
        """Returns a page of the items of a conversation.

        Raises:
            UnknownCursor: `page.after` is none of the items.
        """

    async def find_item(self, tenant: str, id: str, item_id: str) -> bytes | None: ...

    async def delete_item(self, tenant: str, id: str, item_id: str) -> bool: ...

    # Items of either

    async def find_items(self, tenant: str, item_ids: Sequence[str]) -> Mapping[str, bytes]:
        """Returns the newest item of each id, of those that are found."""

    async def close(self) -> None:
        """Ends when everything asked before is done."""
