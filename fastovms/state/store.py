"""The store of responses, items and conversations, as the API sees it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple

_TOPIC_SIZE: Final = 16


class Watch:
    """Tells one task that something may have changed."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def changed(self, seconds: float) -> None:
        """Returns when it has been woken since the last time, or after this number of seconds."""
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
        """Ends the source of notifications."""

    def wake_all(self) -> None:
        """Wakes everybody: notifications that were sent while nothing listened are missed."""
        for topic in self._watches:
            self.wake(topic)


def response_topic(tenant: str, id: str) -> str:
    """Returns the topic of a response in notifications, which are short and which every user of the
    database can read."""
    text = f"{len(tenant)} {tenant}{id}".encode(errors="surrogatepass")
    return blake2b(text, digest_size=_TOPIC_SIZE).hexdigest()


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
    """The progress of a response. INTERRUPTED = it was RUNNING when its process ended, or when its
    lease expired."""

    RUNNING = 0
    FINISHED = 1
    INTERRUPTED = 2


class Resumption(NamedTuple):
    """The data that another process needs to resume a running response.

    Attributes:
        model: what identifies the model. Only who serves that one takes the response over.
        job: what was asked for, in whatever form the API likes.
    """

    model: str
    job: bytes


class ItemOrigin(Enum):
    """Distinguishes the input items of a response from its output."""

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
        resumption: of one that runs; None = when its process has ended, it is not resumed.
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
    """The key of a response."""

    tenant: str
    id: str


class OwnedResponse(NamedTuple):
    """A response that this replica owns, whether it runs or is to be resumed.

    Attributes:
        model: see `Resumption`; "" = it cannot be resumed.
        num_attempts: how often it was resumed since the last output of the model.
    """

    key: ResponseKey
    cancel_requested: bool
    model: str = ""
    num_attempts: int = 0


class RunningResponse(NamedTuple):
    """A response that runs on any replica, or that is to be resumed.

    Attributes:
        model: see `Resumption`; "" = it cannot be resumed.
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
        num_attempts: how often it was resumed, this time included, since the last output of the
            model.
    """

    body: bytes
    input: Sequence[StoredItem]
    previous_id: str | None
    job: bytes
    packs: Sequence[EventPack]
    num_attempts: int
    cancel_requested: bool


class EarlierItems(NamedTuple):
    """The items before a response, the oldest first.

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
