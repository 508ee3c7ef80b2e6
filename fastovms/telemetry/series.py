"""Declares which Prometheus series a statistic is exported as, by an annotation where it is
named."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, partial
from typing import Annotated, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints


class Series(NamedTuple):
    """The Prometheus series of a statistic, in the `Annotated` type of its field.

    Attributes:
        name: without the prefix that all have.
        text: what it tells, for whoever reads a scrape.
        buckets: a histogram's upper bounds.
    """

    kind: Literal["gauge", "counter", "histogram"]
    name: str
    text: str
    buckets: tuple[float, ...] = ()


Gauge: Final = partial(Series, "gauge")
Counter: Final = partial(Series, "counter")


@cache
def series_of(statistics: type) -> tuple[tuple[str, Series], ...]:
    """Returns the path of each field that is exported, such as "grammars.num_running", with its
    series. A field whose type has such fields stands for these."""
    found: list[tuple[str, Series]] = []
    for name, hint in get_type_hints(statistics, include_extras=True).items():
        if get_origin(hint) is Annotated:
            found.append((name, get_args(hint)[1]))
        elif isinstance(hint, type):
            found += [(f"{name}.{path}", series) for path, series in series_of(hint)]
    return tuple(found)


class Histogram:
    """Counts values by bucket. `bounds` are the buckets' upper bounds, ascending."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Records `value` as if it had been seen `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    @property
    def count(self) -> int:
        return sum(self._counts)

    def add(self, other: Histogram) -> None:
        """Takes over what `other`, of the same bounds, has recorded."""
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        self._sum += other._sum

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Returns cumulative (upper bound, count) pairs as Prometheus wants them, and the sum."""
        cumulative = []
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            cumulative.append((bound, float(total)))
        return cumulative, self._sum
