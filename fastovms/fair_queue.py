"""Fair sharing between clients: of a pool's units, and of turns in a queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from fastovms.errors import Overloaded

Item = TypeVar("Item")


class Shares:
    """Counts the units of a pool that each owner holds, and decides which owner may take more. Not
    thread-safe.

    While at most `free` units are taken, any owner may take more. Beyond that, an owner may hold at
    most as many units as are left of `most`, so that some are always left for other owners.
    (Dynamic thresholds, as in network switch buffers: Choudhury and Hahne, 1998.)

    Args:
        free: the number of units that a single owner may take.
        most: the maximum number of units of all owners together.
    """

    def __init__(self, free: int, most: int) -> None:
        self.free = free
        self.most = most
        self.used = 0
        self._held: dict[str, int] = {}  # has no entry for owners that hold nothing

    @classmethod
    def of_places(cls, limit: int) -> Shares:
        """Returns the shares for `limit` places: one owner may take all of them, and the other
        owners together as many again."""
        return cls(limit, 2 * limit + 1)

    def held(self, owner: str) -> int:
        """Returns the number of units that an owner holds."""
        return self._held.get(owner, 0)

    def may_take(self, owner: str, size: int = 1) -> bool:
        """Returns whether the owner may take this number of units now."""
        used = self.used + size
        return used <= self.free or self.held(owner) + size <= self.most - used

    def take(self, owner: str, size: int = 1) -> bool:
        """Takes units if the owner may take them, and returns whether it may."""
        if not self.may_take(owner, size):
            return False
        self.hold(owner, size)
        return True

    def hold(self, owner: str, size: int = 1) -> None:
        """Adds units to an owner, even beyond its share."""
        if size:
            self._held[owner] = self.held(owner) + size
            self.used += size

    def give_back(self, owner: str, size: int = 1) -> None:
        """Returns units of an owner to the pool."""
        left = self._held.pop(owner, 0) - size
        if left:
            self._held[owner] = left
        self.used -= size

    def check(self) -> None:
        """Asserts that the counts are consistent."""
        assert all(held > 0 for held in self._held.values())
        assert sum(self._held.values()) == self.used


class FairQueue(Generic[Item]):
    """A bounded queue that serves clients in turn, one item each. Not thread-safe.

    Args:
        items: the plural noun for the items, for messages.
        per_client: the maximum number of waiting items of one client.
        total: the maximum number of waiting items. At this limit, the newest item of the client
            with the most items is dropped in favour of a client with fewer.
    """

    def __init__(self, items: str, *, per_client: int, total: int) -> None:
        self._items = items
        self._per_client = per_client
        self._total = total
        self._waiting: dict[str, deque[Item]] = {}  # by client; the next one to be served is first
        self._num_items = 0
        self._last = ""  # the client that was served last

    def __len__(self) -> int:
        return self._num_items

    def add(self, client: str, item: Item) -> Item | None:
        """Queues an item after the client's other items.

        Returns:
            The item that was dropped in favour of the new one; None = none.

        Raises:
            Overloaded: too many items wait, and none may be dropped.
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

    def take(self, may_have: Callable[[str, Item], bool] | None = None) -> Item | None:
        """Removes and returns the next item; None = there is none. Clients take turns.

        Args:
            may_have: returns whether a client may have its first item now; a client that may not is
                skipped.
        """
        # Others arrived after the owner was served.
        if next(iter(self._waiting), None) == self._last:
            self._waiting[self._last] = self._waiting.pop(self._last)
        for client, items in self._waiting.items():
            if may_have is None or may_have(client, items[0]):
                break
        else:
            return None
        del self._waiting[client]
        self._last = client
        item = items.popleft()
        self._num_items -= 1
        if items:
            self._waiting[client] = items
        return item

    def discard(self, client: str, item: Item) -> None:
        """Removes the item, if it is still queued."""
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
        """Asserts that the counts are consistent."""
        lengths = [len(items) for items in self._waiting.values()]
        assert sum(lengths) == self._num_items <= self._total
        assert all(0 < length <= self._per_client for length in lengths)
