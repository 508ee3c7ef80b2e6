"""Learns from noisy measurements what work costs by its size, and interpolates between sizes."""

from __future__ import annotations

import statistics
from bisect import bisect_left, insort
from collections import deque
from typing import Final

_MEMORY: Final = 9
"""How many measurements of about one size are remembered. Their median counts: a machine with
neighbours has outliers."""


def _size_class(size: int) -> int:
    """Returns the lower end of the sizes that count as one: four to each power of two."""
    shift = max(0, size.bit_length() - 3)
    return size >> shift << shift


class CostCurve:
    """Seconds by size. Sizes are positive, and about equal ones are taken together."""

    def __init__(self, *, starts_at_zero: bool, memory: int | None = None) -> None:
        """
        Args:
            starts_at_zero: size 0 costs nothing. Else sizes below the smallest known one cost as
                much as that.
            memory: after how many measurements of other sizes one is forgotten; None = never.
        """
        self._starts_at_zero = starts_at_zero
        self._memory = memory
        self._num_learned = 0
        self._last_learned: dict[int, int] = {}
        self._samples: dict[int, deque[tuple[int, float]]] = {}
        self._points: dict[int, tuple[float, float]] = {}
        self._first_seen: list[int] = []
        self._confirmed: list[int] = []

    def knows(self, size: int) -> bool:
        """Returns whether about this size has been measured."""
        return _size_class(size) in self._samples

    def learn(self, size: int, seconds: float) -> None:
        """Takes note of a measurement. The first one of about a size counts only until any has
        been measured twice, since what prepares a size makes it slow."""
        key = _size_class(size)
        samples = self._samples.get(key)
        if samples is None:
            samples = self._samples[key] = deque(maxlen=_MEMORY)
            insort(self._first_seen, key)
        elif key in self._first_seen:
            self._first_seen.remove(key)
            insort(self._confirmed, key)
            samples.clear()
        samples.append((size, seconds))
        self._points[key] = (
            statistics.median(size for size, _ in samples),
            statistics.median(seconds for _, seconds in samples),
        )
        if self._memory is not None:
            self._forget(key, self._memory)

    def _forget(self, learned: int, memory: int) -> None:
        self._num_learned += 1
        self._last_learned[learned] = self._num_learned
        oldest = min(self._last_learned, key=self._last_learned.__getitem__)
        if self._num_learned - self._last_learned[oldest] > memory:
            del self._last_learned[oldest], self._samples[oldest], self._points[oldest]
            (self._first_seen if oldest in self._first_seen else self._confirmed).remove(oldest)

    @property
    def is_confirmed(self) -> bool:
        """Whether a size has been measured twice. Until then all that is known are first
        measurements, which what prepares a size makes slow, at times tenfold."""
        return bool(self._confirmed)

    @property
    def _classes(self) -> list[int]:
        return self._confirmed or self._first_seen

    def seconds(self, size: float, *, beyond: float = 0.0) -> float | None:
        """Returns the estimated seconds of a size; None = nothing has been measured. Above the
        largest known size, each further unit costs `beyond` seconds."""
        classes = self._classes
        if not classes:
            return None
        at = bisect_left(classes, size)
        nearby = [self._points[key] for key in classes[max(0, at - 2) : at + 2]]
        size_below, seconds_below = 0.0, 0.0 if self._starts_at_zero else nearby[0][1]
        for size_above, seconds_above in nearby:
            if size_above > size:
                share = (size - size_below) / (size_above - size_below)
                return seconds_below + share * (seconds_above - seconds_below)
            size_below, seconds_below = size_above, seconds_above
        return seconds_below + (size - size_below) * beyond

    def largest(self) -> tuple[float, float] | None:
        """Returns the largest known size and its seconds."""
        return self._points[self._classes[-1]] if self._classes else None
