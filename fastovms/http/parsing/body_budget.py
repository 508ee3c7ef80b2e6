"""Shares out, by client, the memory that all request bodies together may take."""

from __future__ import annotations

from fastovms.fair_queue import Shares


class BodyBudget(Shares):
    """Counts the bytes of request bodies.

    A client may hold no more than what is then left for all others: half of everything where it is
    alone, a third where another one holds a third, and so on.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(0, limit)
