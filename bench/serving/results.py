"""Tables of the results: the figures of each side, and ratios to those of the first side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bench.common.report import median, ratio, table
from bench.serving.rounds import Rounds
from fastovms.parts.load_test.report import Load, Timeline

_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits in seconds within which a request counts as served well: for its first token, and
    for the mean time of each further token."""

    first_token: float = 2.0
    per_token: float = 0.1

    def are_met(self, timeline: Timeline) -> bool:
        per_token = timeline.time_per_output_token
        return timeline.time_to_first_token <= self.first_token and (
            per_token is None or per_token <= self.per_token
        )

    def goodput(self, timelines: Sequence[Timeline]) -> float:
        """Returns the share of requests that were served within the limits."""
        return sum(map(self.are_met, timelines)) / len(timelines)


def percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else _NAN


def figures_table(all_rounds: Sequence[Rounds]) -> str:
    """Returns a line for each load and side: medians over the rounds of throughput, and percentiles
    over all streams."""
    header = (
        "requests", "side", "tok/s", "first token p50, ms", "p99, ms", "gap p50, ms", "p99, ms",
        "longest, ms",
    )  # fmt: skip
    rows = [
        [rounds.shape.name, name, *_figures(loads)]
        for rounds in all_rounds
        for name, loads in rounds.loads.items()
    ]
    explanation = (
        "tok/s: output tokens a second, the median of the rounds; requests at a rate bring no more "
        "than\nthey ask for. First token: after the request was due. Gap: between two events of a "
        "stream."
    )
    return f"{table(header, rows)}\n\n{explanation}"


def _figures(loads: Sequence[Load]) -> list[object]:
    timelines = _timelines(loads)
    first = [1000 * timeline.time_to_first_token for timeline in timelines]
    gaps = [1000 * gap for timeline in timelines for gap in timeline.gaps]
    return [
        median([load.tokens_per_second for load in loads]),
        percentile(first, 50),
        percentile(first, 99),
        percentile(gaps, 50),
        percentile(gaps, 99),
        max(gaps, default=_NAN),
    ]


def _timelines(loads: Sequence[Load]) -> list[Timeline]:
    return [timeline for load in loads for timeline in load.timelines]


def goodput_table(all_rounds: Sequence[Rounds], limits: Limits) -> str:
    """Returns a line for each load with the share of requests that each side served within the
    limits."""
    names = list(all_rounds[0].loads)
    rows = [
        [
            rounds.shape.name,
            *(f"{limits.goodput(_timelines(rounds.loads[name])):.0%}" for name in names),
        ]
        for rounds in all_rounds
    ]
    explanation = (
        f"Goodput: the share of requests whose first token came within {limits.first_token:g} s, "
        f"and each further\none within {1000 * limits.per_token:g} ms, on average over the request."
    )
    header = ("requests", *(f"goodput of {name}" for name in names))
    return f"{table(header, rows)}\n\n{explanation}"


def ratios_table(all_rounds: Sequence[Rounds]) -> str:
    """Returns the speed of the first side as a multiple of each other side's, with the rounds
    compared in pairs."""
    rows = [row for rounds in all_rounds for row in _ratios(rounds)]
    first = next(iter(all_rounds[0].loads))
    header = ("requests", f"{first} over", "tok/s", "speed to the first token")
    explanation = f"More than 1: {first} is faster. Medians of the rounds' ratios, and their range."
    return f"{table(header, rows)}\n\n{explanation}"


def _ratios(rounds: Rounds) -> Iterator[list[object]]:
    first, *others = rounds.loads
    for name in others:
        ours, theirs = rounds.loads[first], rounds.loads[name]
        yield [
            rounds.shape.name,
            name,
            ratio([load.tokens_per_second for load in ours], [x.tokens_per_second for x in theirs]),
            ratio(list(map(_median_first_token, theirs)), list(map(_median_first_token, ours))),
        ]


def _median_first_token(load: Load) -> float:
    return median([timeline.time_to_first_token for timeline in load.timelines])


def memory_table(all_rounds: Sequence[Rounds]) -> str:
    """Returns the speed of the memory before each side's turn, by round."""
    names = list(all_rounds[0].loads)
    rows = [
        [rounds.shape.name, number, *(speed / 1e9 for speed in speeds)]
        for rounds in all_rounds
        for number, speeds in enumerate(rounds.memory_speeds, start=1)
    ]
    header = ("requests", "round", *(f"memory before {name}, GB/s" for name in names))
    return table(header, rows)
