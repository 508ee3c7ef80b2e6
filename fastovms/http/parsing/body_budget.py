"""Shares out, by client, the memory that all request bodies together may take."""

from __future__ import annotations


class BodyBudget:
    """Counts the bytes of request bodies and shares their memory out by client.

    A client may hold no more than what is then left for all others: half of everything where it is
    alone, a third where another one holds a third, and so on. So there is always something left for
    the small bodies of a client that has none yet, however many others hold all that they may. (It
    is the dynamic threshold by which switches share their buffers: Choudhury and Hahne, 1998.)

    Attributes:
        used: bytes of the bodies that are being read, wait to begin or are being answered.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[str, int] = {}  # by client, of those that hold something
        self.used = 0

    def take(self, client: str, size: int) -> bool:
        """Reserves bytes for a client, and returns whether it may have them. `size` may be more
        than there are in all."""
        held = self._held.get(client, 0) + size
        used = self.used + size
        if held > self._limit - used:
            return False
        self._held[client] = held
        self.used = used
        return True

    def give_back(self, client: str, size: int) -> None:
        held = self._held.pop(client, 0) - size
        if held:
            self._held[client] = held
        self.used -= size

    def check(self) -> None:
        """Asserts that the books balance."""
        assert all(held > 0 for held in self._held.values())
        assert sum(self._held.values()) == self.used <= self._limit
