"""Prometheus series, with vLLM's names under the prefix `fastovms_`.

Recording happens for every token, so the histograms are plain integers that are turned into
Prometheus families only when somebody scrapes. All of it runs on the event loop's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
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
STEP_BUCKETS: Final = _TOKEN_BUCKETS
"""Of `EngineStats.step_seconds`."""

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
    def num_drafts(self) -> int: ...
    @property
    def num_draft_tokens(self) -> int: ...
    @property
    def num_accepted_tokens(self) -> int: ...
    @property
    def step_seconds(self) -> Histogram | None: ...
    @property
    def longest_step_seconds(self) -> float: ...
    @property
    def grammars(self) -> GrammarNumbers: ...


class GrammarNumbers(Protocol):
    """The numbers of a backend's grammars that are exported."""

    @property
    def num_waiting(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_trials(self) -> int: ...
    @property
    def num_deaths(self) -> int: ...
    @property
    def num_overloads(self) -> int: ...


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


class GenerationMetrics:
    """What happened to the requests of one model. `GenerationCollector` exports it.

    Attributes:
        labels: what does not change about the model.
        finished: samples by finish reason.
    """

    def __init__(
        self,
        model_name: str,
        stats: Callable[[], EngineStats],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """`stats` is asked at every scrape."""
        self.model_name = model_name
        self.stats = stats
        self.labels = labels or {}
        self.finished: Counter[str] = Counter()
        self.time_to_first_token = Histogram(_FIRST_TOKEN_BUCKETS)
        self.inter_token_latency = Histogram(_TOKEN_BUCKETS)
        self.request_queue_time = Histogram(_REQUEST_BUCKETS)
        self.e2e_request_latency = Histogram(_REQUEST_BUCKETS)
        self.request_prompt_tokens = Histogram(_NUMBER_BUCKETS)
        self.request_generation_tokens = Histogram(_NUMBER_BUCKETS)
        self.request_params_n = Histogram(_SAMPLE_BUCKETS)
        self.request_params_max_tokens = Histogram(_NUMBER_BUCKETS)

    def request_finished(self, request: FinishedRequest) -> None:
        self.e2e_request_latency.observe(request.seconds)
        self.finished.update(request.finish_reasons)
        self.request_prompt_tokens.observe(request.num_prompt_tokens)
        self.request_generation_tokens.observe(request.num_generated_tokens)
        self.request_params_n.observe(request.n)
        if request.max_tokens is not None:
            self.request_params_max_tokens.observe(request.max_tokens)


def _cache_usage(stats: EngineStats) -> float:
    used = stats.num_blocks - stats.num_free_blocks
    return used / stats.num_blocks if stats.num_blocks else 0.0


_GAUGES: Final[tuple[tuple[str, str, Callable[[EngineStats], float]], ...]] = (
    ("num_requests_running", "Sequences in the running batch", lambda stats: stats.num_running),
    ("num_requests_waiting", "Sequences that wait to run", lambda stats: stats.num_waiting),
    ("kv_cache_usage_perc", "Share of the KV cache blocks in use, 1 = all", _cache_usage),
    ("longest_step_seconds", "The longest step so far", lambda stats: stats.longest_step_seconds),
    ("num_grammars_running", "Grammars being tried", lambda stats: stats.grammars.num_running),
    ("num_grammars_waiting", "Grammars that wait for it", lambda stats: stats.grammars.num_waiting),
)
_COUNTERS: Final = (
    ("prefix_cache_queries", "Prompt tokens looked up", "num_prefix_cache_queries"),
    ("prefix_cache_hits", "Prompt tokens found", "num_prefix_cache_hits"),
    ("num_preemptions", "Sequences put back to recompute", "num_preemptions"),
    ("prompt_tokens", "Prompt tokens processed", "num_prompt_tokens"),
    ("generation_tokens", "Tokens generated", "num_generated_tokens"),
    ("spec_decode_num_drafts", "Drafts verified", "num_drafts"),
    ("spec_decode_num_draft_tokens", "Tokens drafted", "num_draft_tokens"),
    ("spec_decode_num_accepted_tokens", "Drafted tokens that were right", "num_accepted_tokens"),
    ("grammar_trials", "Trials of grammars", "grammars.num_trials"),
    ("grammar_trial_deaths", "Trials that ended their process", "grammars.num_deaths"),
    ("grammar_overloads", "Grammars turned away", "grammars.num_overloads"),
)
"""With the field of `EngineStats` that each exports."""

_HISTOGRAMS: Final = (
    ("time_to_first_token_seconds", "Request to first token", "time_to_first_token"),
    ("inter_token_latency_seconds", "Between tokens", "inter_token_latency"),
    ("request_queue_time_seconds", "Waiting to run", "request_queue_time"),
    ("e2e_request_latency_seconds", "Request to last token", "e2e_request_latency"),
    ("request_prompt_tokens", "Prompt tokens a request", "request_prompt_tokens"),
    ("request_generation_tokens", "Tokens generated a request", "request_generation_tokens"),
    ("request_params_n", "Samples a prompt", "request_params_n"),
    ("request_params_max_tokens", "Tokens asked for a sample", "request_params_max_tokens"),
)
"""With the field of `GenerationMetrics` that each exports."""


class GenerationCollector(Collector):
    """Exports every model's numbers, told apart by the label `model_name`."""

    def __init__(self, models: Sequence[GenerationMetrics]) -> None:
        self._models = tuple(models)

    def collect(self) -> Iterable[Metric]:
        stats = [(model.model_name, model.stats()) for model in self._models]
        yield self._info()
        for name, text, read in _GAUGES:
            gauge = GaugeMetricFamily(_PREFIX + name, text, labels=["model_name"])
            for model_name, values in stats:
                gauge.add_metric([model_name], read(values))
            yield gauge
        for name, text, field in _COUNTERS:
            counter = CounterMetricFamily(_PREFIX + name, text, labels=["model_name"])
            for model_name, values in stats:
                counter.add_metric([model_name], attrgetter(field)(values))
            yield counter
        yield self._finished()
        steps = HistogramMetricFamily(
            f"{_PREFIX}step_seconds", "Duration of the engine's steps", labels=["model_name"]
        )
        for model_name, values in stats:
            histogram = values.step_seconds or Histogram(STEP_BUCKETS)  # none before the first
            steps.add_metric([model_name], *histogram.buckets())
        yield steps
        for name, text, field in _HISTOGRAMS:
            family = HistogramMetricFamily(_PREFIX + name, text, labels=["model_name"])
            for model in self._models:
                family.add_metric([model.model_name], *getattr(model, field).buckets())
            yield family

    def _info(self) -> Metric:
        info = GaugeMetricFamily(f"{_PREFIX}model_info", "1, with what describes the model")
        for model in self._models:
            info.add_sample(info.name, {"model_name": model.model_name, **model.labels}, 1.0)
        return info

    def _finished(self) -> Metric:
        finished = CounterMetricFamily(
            f"{_PREFIX}request_success",
            "Samples that ran to their end",
            labels=["model_name", "finished_reason"],
        )
        for model in self._models:
            for reason, count in model.finished.items():
                finished.add_metric([model.model_name, reason], count)
        return finished


def render(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The registry's exposition and its content type, in the format that `accept` prefers."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
