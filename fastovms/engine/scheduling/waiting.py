"""Keeps the sequences that wait to run, in the order in which they will: by `priority`, then as
they came."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter

from fastovms.engine.scheduling.sequence import Sequence

_rank = attrgetter("rank")

PLACES_PER_PRIORITY = 256
"""How many later arrivals a request lets pass for each level of priority between them. It is
finite, so that nobody starves however much of higher priority keeps coming."""

MAX_PRIORITY = 64
"""The highest priority that counts, in either direction; one beyond it counts as this."""


def rank_of(arrival: int, priority: int) -> int:
    """Returns the place of a request in the queue: the lower, the earlier. `arrival` counts
    requests."""
    clamped = max(-MAX_PRIORITY, min(priority, MAX_PRIORITY))
    return arrival + clamped * PLACES_PER_PRIORITY


class WaitingQueue:
    """The waiting sequences, ordered by rank; equal ranks (the samples of one request) by
    arrival."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def first(self) -> Sequence:
        return self._sequences[0]

    def add(self, sequence: Sequence) -> None:
        """Puts a newcomer behind its equals."""
        self._sequences.insert(bisect_right(self._sequences, sequence.rank, key=_rank), sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Puts a sequence that ran already before its equals."""
        self._sequences.insert(bisect_left(self._sequences, sequence.rank, key=_rank), sequence)

    def remove(self, sequence: Sequence) -> None:
        self._sequences.remove(sequence)
