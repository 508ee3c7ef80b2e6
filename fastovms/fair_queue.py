"""Queues items within bounds and serves clients in turn, so that nobody waits for more than one
item of each other client."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from fastovms.errors import Overloaded

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """A bounded queue that takes one item of each client in turn. It is not thread-safe.

    Args:
        items: what the items are, in the plural, for messages.
        per_client: how many items of one client may wait.
        total: how many items may wait in all. When there are so many, the newest item of the client
            with the most of them makes room for a client with fewer.
    """

    def __init__(self, items: str, *, per_client: int, total: int) -> None:
        self._items = items
        self._per_client = per_client
        self._total = total
        self._waiting: dict[str, deque[Item]] = {}  # by client, the next to be served first
        self._num_items = 0

    def __len__(self) -> int:
        return self._num_items

    def add(self, client: str, item: Item) -> Item | None:
        """Puts the item behind the client's others.

        Returns:
            The item that had to make room for it, if one had to.

        Raises:
            Overloaded: too many wait, and none of them has to make room.
        """
        num_own = len(self._waiting.get(client, ()))
        if num_own >= self._per_client:
            raise Overloaded(f"{num_own} {self._items} of this client are waiting already")
        displaced = None
        if self._num_items >= self._total:
            longest = max(self._waiting, key=lambda other: len(self._waiting[other]))
            if len(self._waiting[longest]) <= num_own + 1:
                raise Overloaded(f"{self._num_items} {self._items} are waiting already")
            displaced = self._waiting[longest].pop()
            self._num_items -= 1
        self._waiting.setdefault(client, deque()).append(item)
        self._num_items += 1
        return displaced

    def take(self) -> Item | None:
        """Removes and returns the next item, or None if nothing waits. The client's next item comes
        after one of everybody else's."""
        if not self._waiting:
            return None
        client = next(iter(self._waiting))
        items = self._waiting.pop(client)
        item = items.popleft()
        self._num_items -= 1
        if items:
            self._waiting[client] = items
        return item

    def discard(self, client: str, item: Item) -> None:
        """Removes the item, if it waits."""
        items = self._waiting.get(client)
        if items is None or item not in items:
            return
        items.remove(item)
        self._num_items -= 1
        if not items:
            del self._waiting[client]

    def clear(self) -> list[Item]:
        """Removes and returns all items."""
        items = [item for waiting in self._waiting.values() for item in waiting]
        self._waiting.clear()
        self._num_items = 0
        return items

    def check(self) -> None:
        """Asserts that the books balance."""
        lengths = [len(items) for items in self._waiting.values()]
        assert sum(lengths) == self._num_items <= self._total
        assert all(0 < length <= self._per_client for length in lengths)
