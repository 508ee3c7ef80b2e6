"""Computes what a load test tells: throughput and latencies, as `vllm bench serve` defines them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fastovms.load_test.timeline import Load, Timeline

MILLISECONDS: Final = 1000.0


@dataclass(frozen=True, slots=True)
class Distribution:
    """A latency over all requests, in milliseconds. `percentiles` has values by percentile."""

    mean: float
    median: float
    std: float
    percentiles: Mapping[float, float]

    @classmethod
    def of(cls, seconds: Sequence[float], percentiles: Sequence[float]) -> Distribution | None:
        """Returns the distribution of times, or None of none."""
        if not len(seconds):
            return None
        values = np.asarray(seconds) * MILLISECONDS
        return cls(
            float(values.mean()),
            float(np.median(values)),
            float(values.std()),
            {p: float(np.percentile(values, p)) for p in percentiles},
        )


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """What one round came to. Times in seconds, rates a second.

    Attributes:
        errors: how many requests have failed, by kind; a reason of each kind in `reasons`.
        total_input_tokens: None = the server does not count them.
        counts_events: whether some server sends no `usage`, so that each of its events counts as
            one token.
        request_goodput: requests within all limits; None = there are none.
        latencies: by name, of `LATENCIES`; one that nothing is known of is left out.
    """

    completed: int
    errors: Mapping[str, int]
    reasons: Mapping[str, str]
    duration: float
    total_input_tokens: int | None
    total_output_tokens: int
    counts_events: bool
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    latencies: Mapping[str, Distribution]

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    @property
    def total_token_throughput(self) -> float | None:
        """Tokens of prompts and answers."""
        if self.total_input_tokens is None:
            return None
        total = self.total_input_tokens + self.total_output_tokens
        return _rate(total, self.duration)


def summarize(
    load: Load,
    *,
    percentiles: Sequence[float] = (),
    latencies: Sequence[str] = (),
    goodput: Mapping[str, float] | None = None,
) -> LoadSummary:
    """Computes the figures of a load, those of latencies and tokens over the requests that have
    succeeded.

    Args:
        goodput: limits of requests in milliseconds, by latency.
    """
    done = [timeline for timeline in load.timelines if timeline.failure is None]
    failures = [timeline.failure for timeline in load.timelines if timeline.failure is not None]
    inputs = [timeline.prompt_tokens for timeline in done]
    outputs = sum(timeline.num_tokens for timeline in done)
    distributions = {
        name: Distribution.of(values_of(name, done), percentiles) for name in latencies
    }
    return LoadSummary(
        completed=len(done),
        errors=dict(Counter(failure.kind for failure in failures).most_common()),
        reasons={failure.kind: failure.reason for failure in reversed(failures)},
        duration=load.seconds,
        total_input_tokens=sum(n for n in inputs if n is not None) if None not in inputs else None,
        total_output_tokens=outputs,
        counts_events=any(timeline.completion_tokens is None for timeline in done),
        request_throughput=_rate(len(done), load.seconds),
        request_goodput=(
            _rate(sum(_is_good(timeline, goodput) for timeline in done), load.seconds)
            if goodput
            else None
        ),
        output_throughput=_rate(outputs, load.seconds),
        max_output_tokens_per_s=max(tokens_by_second(done), default=0.0),
        max_concurrent_requests=_most_at_once(done),
        latencies={name: found for name, found in distributions.items() if found is not None},
    )


_LATENCY_OF: Final[Mapping[str, Callable[[Timeline], Sequence[float]]]] = {
    "ttft": lambda timeline: [timeline.time_to_first_token],
    "tpot": lambda timeline: (
        [] if (seconds := timeline.time_per_output_token) is None else [seconds]
    ),
    "itl": lambda timeline: timeline.gaps,
    "e2el": lambda timeline: [timeline.latency],
}


def values_of(name: str, timelines: Sequence[Timeline]) -> list[float]:
    """Returns all values of a latency, in seconds."""
    return [value for timeline in timelines for value in _LATENCY_OF[name](timeline)]


def tokens_by_second(timelines: Sequence[Timeline]) -> list[float]:
    """Returns the output tokens of each second from the first request on. The tokens of a request
    are spread evenly over its events, since the server counts them once."""
    if not timelines:
        return []
    start = min(timeline.started for timeline in timelines)
    seconds = np.concatenate([np.asarray(timeline.arrivals) - start for timeline in timelines])
    weights = np.concatenate(
        [np.full(len(t.arrivals), t.num_tokens / len(t.arrivals)) for t in timelines]
    )
    return [float(tokens) for tokens in np.bincount(seconds.astype(int), weights)]


def _most_at_once(timelines: Sequence[Timeline]) -> int:
    """Returns how many requests have run at the same time at most."""
    changes = sorted(
        [(timeline.started, 1) for timeline in timelines]
        + [(timeline.arrivals[-1], -1) for timeline in timelines]
    )
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def _is_good(timeline: Timeline, limits: Mapping[str, float]) -> bool:
    return all(
        value * MILLISECONDS <= limit
        for name, limit in limits.items()
        for value in _LATENCY_OF[name](timeline)
    )


def _rate(number: float, seconds: float) -> float:
    return number / seconds if seconds else 0.0
