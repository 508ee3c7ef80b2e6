"""What all request bodies together may take of the memory, and each client of that."""

from __future__ import annotations


class BodyBudget:
    """Counts bytes, and shares them out by client.

    A client may hold no more than what is then left for all others: half of everything where it is
    alone, a third where another one holds a third, and so on. So there is always something left for
    the small bodies of a client that has none yet, however many others hold all that they may. (It
    is the dynamic threshold by which switches share their buffers: Choudhury and Hahne, 1998.)

    Attributes:
        used: by the bodies that are being read, wait for their turn or are being answered.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[str, int] = {}  # by client, of those that hold something
        self.used = 0

    def take(self, client: str, size: int) -> bool:
        """Returns whether the client has got so many bytes, which may be more than there are."""
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
        """Asserts that the books are right."""
        assert all(held > 0 for held in self._held.values())
        assert sum(self._held.values()) == self.used <= self._limit
