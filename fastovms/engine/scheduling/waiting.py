"""Keeps the sequences that wait to run, in the order in which they will: by `priority`, by what
their owners run already, then as they came."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from heapq import merge
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
    """The waiting sequences, those of each owner by rank, and equal ranks (the samples of one
    request) by arrival. Each sequence that an owner runs counts as a level of priority against its
    next one, so that owners get equal numbers of running sequences.

    Attributes:
        num_running: how many sequences each owner runs.
    """

    def __init__(self) -> None:
        self._sequences: dict[str, list[Sequence]] = {}  # by owner, of those that have some
        self._len = 0
        self._first: Sequence | None = None  # None = not known yet
        self.num_running: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Sequence]:
        """Yields the sequences by rank."""
        return merge(*self._sequences.values(), key=_rank)

    @property
    def num_by_owner(self) -> Counter[str]:
        """How many sequences of each owner wait."""
        return Counter({owner: len(waiting) for owner, waiting in self._sequences.items()})

    @property
    def first(self) -> Sequence:
        """The next sequence to run. It is looked for among owners only after a change."""
        if self._first is None:
            self._first = min((own[0] for own in self._sequences.values()), key=self.place)
        return self._first

    def place(self, sequence: Sequence) -> int:
        """Returns the place of a sequence among those of all owners."""
        return sequence.rank + PLACES_PER_PRIORITY * self.num_running[sequence.owner]

    def add(self, sequence: Sequence) -> None:
        """Puts a newcomer behind its equals."""
        own = self._own(sequence)
        own.insert(bisect_right(own, sequence.rank, key=_rank), sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Puts a sequence that ran already before its equals."""
        own = self._own(sequence)
        own.insert(bisect_left(own, sequence.rank, key=_rank), sequence)

    def remove(self, sequence: Sequence) -> None:
        own = self._sequences[sequence.owner]
        own.remove(sequence)
        if not own:
            del self._sequences[sequence.owner]
        self._len -= 1
        self._first = None

    def note_running(self, owner: str, change: int) -> None:
        """Notes that an owner runs more sequences, or fewer."""
        self.num_running[owner] += change
        if not self.num_running[owner]:
            del self.num_running[owner]
        self._first = None

    def _own(self, sequence: Sequence) -> list[Sequence]:
        """Returns the list of the sequence's owner, into which the caller inserts it."""
        self._len += 1
        self._first = None
        return self._sequences.setdefault(sequence.owner, [])
