"""What all request bodies together may take of the memory."""

from __future__ import annotations


class BodyBudget:
    """Counts bytes.

    Attributes:
        used: by the bodies that are being read, wait for their turn or are being answered.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    def take(self, size: int) -> bool:
        """False = that is more than there is."""
        if self.used + size > self._limit:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        self.used -= size
