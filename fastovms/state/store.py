"""The store of responses, items and conversations, as the API sees it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum, IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

_TOPIC_SIZE: Final = 16


class Watch:
    """Tells one task that something may have changed."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def changed(self, seconds: float) -> None:
        """Returns when it has been woken since the last time, or after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()


class Watchers:
    """The watches by what they wait for. The event loop uses it."""

    def __init__(self) -> None:
        self._watches: defaultdict[str, set[Watch]] = defaultdict(set)

    @contextmanager
    def watch(self, topic: str) -> Iterator[Watch]:
        watch = Watch()
        self._watches[topic].add(watch)
        try:
            yield watch
        finally:
            self._watches[topic].discard(watch)
            if not self._watches[topic]:
                del self._watches[topic]

    def wake(self, topic: str) -> None:
        for watch in self._watches.get(topic, ()):
            watch.wake()

    async def close(self) -> None:
        """Ends whatever tells of changes."""

    def wake_all(self) -> None:
        """Wakes everybody: what was told while nobody listened is missed."""
        for topic in self._watches:
            self.wake(topic)


def response_topic(tenant: str, id: str) -> str:
    """Returns what stands for a response in notifications, which are short and which every user of
    the database can read."""
    text = f"{len(tenant)} {tenant}{id}".encode(errors="surrogatepass")
    return blake2b(text, digest_size=_TOPIC_SIZE).hexdigest()


# Declares `StateStore`, what the API asks of whatever keeps responses and conversations.
#
# Objects are JSON texts that the store does not read, with items in an order. Each belongs to a
# tenant, and is not there for any other. An operation that changes something returns when the
# change will survive the process.
#
# Several replicas may use one store. A response that runs is then owned by the replica that runs
# it, for as long as that renews its lease; the others follow it by what the store is told.


class StoredItem(NamedTuple):
    """One item of a response or a conversation. `body` is its JSON text, the id included. Ids need
    not be unique: a client may send an item back under the id that it got it with."""

    id: str
    body: bytes


class ResponseProgress(IntEnum):
    """How far a response has come. INTERRUPTED = it was RUNNING when its process ended, or when its
    lease expired."""

    RUNNING = 0
    FINISHED = 1
    INTERRUPTED = 2


class Resumption(NamedTuple):
    """What another process needs to go on with a response that runs.

    Attributes:
        model: what identifies the model. Only who serves that one takes the response over.
        job: what was asked for, in whatever form the API likes.
    """

    model: str
    job: bytes


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
        resumption: of one that runs; None = when its process has ended, nobody goes on with it.
    """

    id: str
    body: bytes
    input: Sequence[StoredItem] = ()
    output: Sequence[StoredItem] = ()
    previous_id: str | None = None
    progress: ResponseProgress = ResponseProgress.FINISHED
    events: bytes | None = None
    resumption: Resumption | None = None


class FoundResponse(NamedTuple):
    """A stored response as far as it is told: without its input, which may be long."""

    body: bytes
    output: Sequence[StoredItem]
    progress: ResponseProgress


class ResponseKey(NamedTuple):
    """What a response is found by."""

    tenant: str
    id: str


class OwnedResponse(NamedTuple):
    """A response that this replica owns, whether it runs or is to be gone on with.

    Attributes:
        model: see `Resumption`; "" = nobody can go on with it.
        num_attempts: how often it was gone on with since the model last said something.
    """

    key: ResponseKey
    cancel_requested: bool
    model: str = ""
    num_attempts: int = 0


class RunningResponse(NamedTuple):
    """A response that runs on any replica, or that is to be resumed.

    Attributes:
        model: see `Resumption`; "" = nobody can resume it.
        has_owner: whether a replica renews its lease.
    """

    key: ResponseKey
    model: str
    has_owner: bool


class EventPack(NamedTuple):
    """Some events of a stream, in whatever form the API likes.

    Attributes:
        first: number of the first of them.
        outputs: what the model has said since the pack before, up to the last of these events at
            least, for who goes on with the response; None = nothing is kept of it.
    """

    first: int
    data: bytes
    outputs: bytes | None = None


class FoundEvents(NamedTuple):
    """Events of a response, in their order, and how far it has come."""

    progress: ResponseProgress
    packs: Sequence[EventPack]


class CutResponse(NamedTuple):
    """A response whose process has ended before it had.

    Attributes:
        num_attempts: how often it was gone on with, this time included, since the model last said
            something.
    """

    body: bytes
    input: Sequence[StoredItem]
    previous_id: str | None
    job: bytes
    packs: Sequence[EventPack]
    num_attempts: int
    cancel_requested: bool


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
    """Says which items, or which conversations, to list.

    Attributes:
        after: id of the one before the first; None = from the beginning (or the end).
    """

    limit: int
    ascending: bool
    after: str | None = None


class ItemPage(NamedTuple):
    """Items of a list, or conversations without their items."""

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


class UnknownPrevious(Exception):
    """A response cannot be added that continues one which is not there, or itself. `str` is the id
    of that one."""


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
    ) -> bool:
        """Adds it, and its items to the conversation as well, if that is still there. One that is
        RUNNING becomes this replica's. False = there is one with its id already.

        Raises:
            UnknownPrevious: not all that it continues is there, or it would continue itself.
            TooLarge: it continues more than any may.
        """

    async def finish_response(
        self, tenant: str, response: StoredResponse, *, conversation_id: str | None = None
    ) -> bool:
        """Does what `add_response` does, in place of one that runs on this replica. False = none
        does: it was deleted, or its lease has expired."""

    async def find_response(self, tenant: str, id: str) -> FoundResponse | None: ...

    async def delete_response(self, tenant: str, id: str) -> bool: ...

    async def response_context(
        self, tenant: str, id: str, *, max_bytes: int
    ) -> EarlierItems | None:
        """Returns the input and output of the response and of all that it continues, of these the
        newest that have no more than `max_bytes` together. It is a use of all of them.

        Raises:
            TooLarge: it continues so many that none may continue it.
        """

    async def list_input(self, tenant: str, id: str, page: Page) -> ItemPage | None:
        """Returns a page of the input of a response, with that of the responses before it.

        Raises:
            UnknownCursor: `page.after` is none of the items.
        """

    # Responses that run

    @property
    def lease(self) -> float | None:
        """Returns for how many seconds a response stays this replica's when it does not renew its
        lease; None = no other replica uses the store, and leases do not expire."""

    async def add_events(self, tenant: str, id: str, pack: EventPack) -> bool:
        """Adds events of a response that runs on this replica, in place of a pack with the same
        first number. False = it does not, as for `finish_response`."""

    async def find_events(self, tenant: str, id: str, start: int) -> FoundEvents | None:
        """Returns the packs that have events from number `start` on. The first pack may begin
        before it, and there is at most one that has none of them."""

    async def request_cancel(self, tenant: str, id: str) -> bool:
        """Has the replica that runs a response cancel it. False = it runs nowhere."""

    async def renew_leases(self) -> Sequence[OwnedResponse]:
        """Renews the leases of all responses that this replica owns, and returns these."""

    async def give_up(self, keys: Sequence[ResponseKey]) -> None:
        """Lets others take over responses that this replica owns. Those without a `Resumption`
        become INTERRUPTED."""

    async def interrupt_expired(self, patience: float) -> None:
        """Makes responses INTERRUPTED whose leases have expired, whoever owns them: those with a
        `Resumption` once nobody has taken them over for so many seconds."""

    async def list_running(self, limit: int) -> Sequence[RunningResponse]:
        """Returns the responses of all tenants that have not ended, on whichever replica, the
        oldest first."""

    async def take_over(
        self,
        models: Sequence[str] | None,
        limit: int,
        tenants: Collection[str] | None = None,
    ) -> Sequence[OwnedResponse]:
        """Makes responses this replica's whose leases have expired, and which can be gone on with.
        Of several replicas one gets each.

        Args:
            models: what identifies those that are served here; None = whatever the model is.
            limit: how many are taken at most, the least often tried and the oldest first.
            tenants: whose responses are resumed; None = everybody's. Those of others are taken only
                to be cancelled.
        """

    async def begin_attempt(self, tenant: str, id: str) -> CutResponse | None:
        """Takes note that this replica is about to go on with a response that it owns, and returns
        what there is of it. None = it does not own it."""

    def watch_response(self, tenant: str, id: str) -> AbstractContextManager[Watch]:
        """Watches, in a `with` statement, for changes of a response by other replicas. Some may be
        missed, so look again after a second at the latest."""

    def watch_cancels(self) -> AbstractContextManager[Watch]:
        """Watches likewise for requests to cancel what this replica owns, or for its loss."""

    # Conversations

    async def add_conversation(
        self, tenant: str, id: str, body: bytes, items: Sequence[StoredItem]
    ) -> None: ...

    async def find_conversation(self, tenant: str, id: str) -> bytes | None: ...

    async def list_conversations(self, tenant: str, page: Page) -> ItemPage:
        """Returns a page of the conversations, in the order in which they were begun. It is no use
        of them.

        Raises:
            UnknownCursor: `page.after` is none of them.
        """

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
