"""Wakes those who wait for a change that another replica makes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Final

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
