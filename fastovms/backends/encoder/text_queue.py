"""Queues the texts of many requests, and makes batches of about equal lengths of them, from each
client in turn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeVar

from fastovms.backends.encoder.batch_shapes import num_rows

Job = TypeVar("Job")

_MIN_FILL: Final = 0.85
"""The share of the longest text's tokens that the others of a batch have at least, so that little
is padding. Texts of a few tokens go together anyway."""

_FEW: Final = 8
"""So many tokens less than the longest text may always have."""


class QueuedText(NamedTuple, Generic[Job]):
    """A text of a batch: its job, its position there, and its length in tokens."""

    job: Job
    position: int
    length: int


class _Waiting:
    """The texts of one job that are in no batch yet, the shortest first."""

    __slots__ = ("indices", "lengths")

    def __init__(self, lengths: Sequence[int]) -> None:
        self.indices = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.lengths = [lengths[index] for index in self.indices]


class TextQueue(Generic[Job]):
    """The texts of all jobs. It is not thread-safe.

    A batch begins with the longest text of the client that was not served for the longest time; the
    others are a little shorter, of the same client first. Texts of a higher priority go before all
    others, and never with them.
    """

    def __init__(self) -> None:
        # By priority and client, the next of each priority to be served first.
        self._jobs: dict[tuple[int, str], dict[Job, _Waiting]] = {}
        self.num_texts = 0

    def add(self, client: str, job: Job, lengths: Sequence[int], priority: int = 0) -> None:
        """Queues the texts of a job, at least one. A lower priority is sooner."""
        self._jobs.setdefault((priority, client), {})[job] = _Waiting(lengths)
        self.num_texts += len(lengths)

    def discard(self, client: str, job: Job, priority: int = 0) -> None:
        """Removes the texts of a job that are in no batch yet."""
        waiting = self._jobs.get((priority, client), {}).pop(job, None)
        if waiting is not None:
            self.num_texts -= len(waiting.lengths)
            self._drop_if_empty((priority, client))

    def next_batch(self, max_tokens: int) -> list[QueuedText[Job]]:
        """Removes and returns the next texts; none where none wait.

        Args:
            max_tokens: of all of them, padded to the longest. One text may have more.
        """
        if not self._jobs:
            return []
        first = min(self._jobs, key=itemgetter(0))  # of several, the one that comes first
        self._jobs[first] = self._jobs.pop(first)
        own = next(iter(self._jobs[first].values()))
        longest = own.lengths[-1]
        shortest = min(int(longest * _MIN_FILL), longest - _FEW)
        room = num_rows(longest, max_tokens)
        batch: list[QueuedText[Job]] = []
        others = [key for key in self._jobs if key[0] == first[0] and key != first]
        for key in (first, *others):
            for job, waiting in list(self._jobs[key].items()):
                end = bisect_right(waiting.lengths, longest)
                while end and len(batch) < room and waiting.lengths[end - 1] >= shortest:
                    end -= 1
                    index, length = waiting.indices.pop(end), waiting.lengths.pop(end)
                    batch.append(QueuedText(job, index, length))
                if not waiting.lengths:
                    del self._jobs[key][job]
            self._drop_if_empty(key)
            if len(batch) == room:
                break
        self.num_texts -= len(batch)
        return batch

    def _drop_if_empty(self, key: tuple[int, str]) -> None:
        if not self._jobs[key]:
            del self._jobs[key]

    def check(self) -> None:
        """Asserts that the books balance."""
        waiting = [each for jobs in self._jobs.values() for each in jobs.values()]
        assert all(jobs for jobs in self._jobs.values())
        assert all(each.lengths == sorted(each.lengths) != [] for each in waiting)
        assert sum(len(each.lengths) for each in waiting) == self.num_texts
