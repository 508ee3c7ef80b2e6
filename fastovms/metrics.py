"""Prometheus series, with vLLM's names under the prefix `fastovms_`.

Recording happens for every token, so the histograms are plain integers that are turned into
Prometheus families only when somebody scrapes. All of it runs on the event loop's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

_PREFIX: Final = "fastovms_"
_FIRST_TOKEN_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_BUCKETS: Final = (
    0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip


_NUMBER_BUCKETS: Final = tuple(
    float(step * 10**exponent) for exponent in range(7) for step in (1, 2, 5)
)
_SAMPLE_BUCKETS: Final = (1.0, 2.0, 5.0, 10.0, 20.0)


class FinishedRequest(NamedTuple):
    """What is recorded of a request that ran to its end.

    Attributes:
        seconds: from its arrival to its last token.
        finish_reasons: one for each sample of each prompt.
        num_prompt_tokens, num_generated_tokens: as its usage counts them.
        n: samples of each prompt.
        max_tokens: of each sample; None = as many as the context holds.
    """

    seconds: float
    finish_reasons: Sequence[str]
    num_prompt_tokens: int
    num_generated_tokens: int
    n: int
    max_tokens: int | None


class EngineStats(Protocol):
    """The numbers of a backend that are exported."""

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def num_free_blocks(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def num_prefix_cache_queries(self) -> int: ...
    @property
    def num_prefix_cache_hits(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_generated_tokens(self) -> int: ...
    @property
    def num_draft_tokens(self) -> int: ...
    @property
    def num_accepted_tokens(self) -> int: ...


class Histogram:
    """Counts of values by bucket. `bounds` are upper bounds, ascending."""

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
        """Cumulative (upper bound, count) pairs as Prometheus wants them, and the sum."""
        cumulative = []
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            cumulative.append((bound, float(total)))
        return cumulative, self._sum


class GenerationMetrics(Collector):
    """What happened to the requests of one model."""

    def __init__(self, model_name: str, stats: Callable[[], EngineStats]) -> None:
        """`stats` is asked at every scrape."""
        self._model_name = model_name
        self._stats = stats
        self._finished: Counter[str] = Counter()
        self.time_to_first_token = Histogram(_FIRST_TOKEN_BUCKETS)
        self.inter_token_latency = Histogram(_TOKEN_BUCKETS)
        self.request_queue_time = Histogram(_REQUEST_BUCKETS)
        self._e2e_request_latency = Histogram(_REQUEST_BUCKETS)
        self._request_prompt_tokens = Histogram(_NUMBER_BUCKETS)
        self._request_generation_tokens = Histogram(_NUMBER_BUCKETS)
        self._request_params_n = Histogram(_SAMPLE_BUCKETS)
        self._request_params_max_tokens = Histogram(_NUMBER_BUCKETS)

    def request_finished(self, request: FinishedRequest) -> None:
        self._e2e_request_latency.observe(request.seconds)
        self._finished.update(request.finish_reasons)
        self._request_prompt_tokens.observe(request.num_prompt_tokens)
        self._request_generation_tokens.observe(request.num_generated_tokens)
        self._request_params_n.observe(request.n)
        if request.max_tokens is not None:
            self._request_params_max_tokens.observe(request.max_tokens)

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        used = stats.num_blocks - stats.num_free_blocks
        yield self._gauge(
            "num_requests_running", "Sequences in the running batch", stats.num_running
        )
        yield self._gauge("num_requests_waiting", "Sequences that wait to run", stats.num_waiting)
        yield self._gauge(
            "kv_cache_usage_perc",
            "Share of the KV cache blocks in use, 1 = all",
            used / stats.num_blocks if stats.num_blocks else 0.0,
        )
        for name, text, value in (
            ("prefix_cache_queries", "Prompt tokens looked up", stats.num_prefix_cache_queries),
            ("prefix_cache_hits", "Prompt tokens found", stats.num_prefix_cache_hits),
            ("num_preemptions", "Sequences put back to recompute", stats.num_preemptions),
            ("prompt_tokens", "Prompt tokens processed", stats.num_prompt_tokens),
            ("generation_tokens", "Tokens generated", stats.num_generated_tokens),
            ("spec_decode_num_draft_tokens", "Tokens drafted", stats.num_draft_tokens),
            (
                "spec_decode_num_accepted_tokens",
                "Drafted tokens that were right",
                stats.num_accepted_tokens,
            ),
        ):
            counter = CounterMetricFamily(_PREFIX + name, text, labels=["model_name"])
            counter.add_metric([self._model_name], value)
            yield counter
        finished = CounterMetricFamily(
            f"{_PREFIX}request_success",
            "Samples that ran to their end",
            labels=["model_name", "finished_reason"],
        )
        for reason, count in self._finished.items():
            finished.add_metric([self._model_name, reason], count)
        yield finished
        for name, text, histogram in (
            ("time_to_first_token_seconds", "Request to first token", self.time_to_first_token),
            ("inter_token_latency_seconds", "Between tokens", self.inter_token_latency),
            ("request_queue_time_seconds", "Waiting to run", self.request_queue_time),
            ("e2e_request_latency_seconds", "Request to last token", self._e2e_request_latency),
            ("request_prompt_tokens", "Prompt tokens a request", self._request_prompt_tokens),
            (
                "request_generation_tokens",
                "Tokens generated a request",
                self._request_generation_tokens,
            ),
            ("request_params_n", "Samples a prompt", self._request_params_n),
            (
                "request_params_max_tokens",
                "Tokens asked for a sample",
                self._request_params_max_tokens,
            ),
        ):
            family = HistogramMetricFamily(_PREFIX + name, text, labels=["model_name"])
            family.add_metric([self._model_name], *histogram.buckets())
            yield family

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(_PREFIX + name, text, labels=["model_name"])
        gauge.add_metric([self._model_name], value)
        return gauge


def render(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The registry's exposition and its content type, in the format that `accept` prefers."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
