"""The types of the store of responses, items and conversations, as the API uses them."""

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
    """Notifies one task of possible changes."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Notifies the task; `changed` then returns."""
        self._woken.set()

    async def changed(self, seconds: float) -> None:
        """Waits for a notification since the last call, for at most this number of seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()


class Watchers:
    """The watches of each topic. Used only on the event loop."""

    def __init__(self) -> None:
        self._watches: defaultdict[str, set[Watch]] = defaultdict(set)

    @contextmanager
    def watch(self, topic: str) -> Iterator[Watch]:
        """Watches a topic while the context is open."""
        watch = Watch()
        self._watches[topic].add(watch)
        try:
            yield watch
        finally:
            self._watches[topic].discard(watch)
            if not self._watches[topic]:
                del self._watches[topic]

    def wake(self, topic: str) -> None:
        """Wakes the watches of a topic."""
        for watch in self._watches.get(topic, ()):
            watch.wake()

    async def close(self) -> None:
        """Stops receiving notifications."""

    def wake_all(self) -> None:
        """Wakes all watches, because notifications were missed while the connection was lost."""
        for topic in self._watches:
            self.wake(topic)


def response_topic(tenant: str, id: str) -> str:
    """Returns the notification topic of a response, a hash: topics are limited in length, and every
    user of the database can read them."""
    text = f"{len(tenant)} {tenant}{id}".encode(errors="surrogatepass")
    return blake2b(text, digest_size=_TOPIC_SIZE).hexdigest()


class StoredItem(NamedTuple):
    """One item of a response or a conversation. `body` is its JSON, including the id. Ids are not
    unique, because clients may send items back with their ids."""

    id: str
    body: bytes


class ResponseProgress(IntEnum):
    """The progress of a response. INTERRUPTED: its process ended, or its lease expired, while the
    response was RUNNING."""

    RUNNING = 0
    FINISHED = 1
    INTERRUPTED = 2


class Resumption(NamedTuple):
    """The data that another process needs to resume a running response.

    Attributes:
        model: the identity of the model. Only replicas that serve this model resume the response.
        job: the request, in a format defined by the API.
    """

    model: str
    job: bytes


class ItemOrigin(Enum):
    """Whether an item is input or output of a response."""

    INPUT = 0
    OUTPUT = 1


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response with its items.

    Attributes:
        body: the response as a JSON object, without its output.
        input, output: its items; `input` excludes items of earlier responses.
        previous_id: the response that it continues; None = none.
        events: the events of its stream, in a format defined by the API.
        resumption: the data to resume it while it runs; None = not resumable.
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
    """A stored response without its input, which may be long."""

    body: bytes
    output: Sequence[StoredItem]
    progress: ResponseProgress


class ResponseKey(NamedTuple):
    """The tenant and the id of a response, which identify it."""

    tenant: str
    id: str


class OwnedResponse(NamedTuple):
    """A response that this replica owns, running or to be resumed.

    Attributes:
        model: see `Resumption`; "" = not resumable.
        num_attempts: the number of resumptions since the last output of the model.
    """

    key: ResponseKey
    cancel_requested: bool
    model: str = ""
    num_attempts: int = 0


class RunningResponse(NamedTuple):
    """A response that runs on any replica, or waits to be resumed.

    Attributes:
        model: see `Resumption`; "" = not resumable.
        has_owner: whether a replica owns it and renews its lease.
    """

    key: ResponseKey
    model: str
    has_owner: bool


class EventPack(NamedTuple):
    """Consecutive events of a stream, in a format defined by the API.

    Attributes:
        first: the number of its first event.
        outputs: the model's output since the previous pack, at least up to the last of these
            events, for resumption; None = not stored.
    """

    first: int
    data: bytes
    outputs: bytes | None = None


class FoundEvents(NamedTuple):
    """Events of a response in order, and its progress."""

    progress: ResponseProgress
    packs: Sequence[EventPack]


class InterruptedResponse(NamedTuple):
    """A response whose process ended while it was running. `num_attempts` is the number of
    resumptions since the last model output, including this one."""

    body: bytes
    input: Sequence[StoredItem]
    previous_id: str | None
    job: bytes
    packs: Sequence[EventPack]
    num_attempts: int
    cancel_requested: bool


class EarlierItems(NamedTuple):
    """The items that precede a new response, oldest first.

    Attributes:
        is_whole: False = older items were left out because of the limit.
        missing_id: the id of a missing response in the chain; None = none is missing.
        progress: the progress of the requested response, or FINISHED.
    """

    items: Sequence[StoredItem]
    is_whole: bool = True
    missing_id: str | None = None
    progress: ResponseProgress = ResponseProgress.FINISHED


class Page(NamedTuple):
    """A request for one page of a list of items or conversations. `after` is the id of the entry
    before the page; None = from the beginning (or the end)."""

    limit: int
    ascending: bool
    after: str | None = None


class ItemPage(NamedTuple):
    """Items of a list, or conversations without their items."""

    items: Sequence[StoredItem]
    has_more: bool


class StateStats(NamedTuple):
    """The statistics of a store.

    Attributes:
        num_objects: the number of responses and conversations.
        num_bytes: their total size, as the limit counts it.
        num_failures: the number of operations that failed because of the disk or the database.
        is_on_disk: whether the data survive the process.
    """

    num_objects: int
    num_bytes: int
    num_failures: int
    is_on_disk: bool


class UnknownCursor(Exception):
    """`Page.after` is not the id of an entry."""


class UnknownPrevious(Exception):
    """A response continues a missing response, or itself. The message is that response's id."""
