"""Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from fastovms.backend_stats import (
    STEP_BUCKETS,
    BackendStats,
    Gauge,
    Histogram,
    Series,
    continued,
    series_of,
)


class SampleTimings(NamedTuple):
    """The durations of one sample's phases in seconds, divided as in vLLM.

    Attributes:
        queue: from the sample's submission to the step that admitted its prompt.
        prefill: from that step to the sample's first token.
        decode: from the first token to the last.
        num_tokens: the number of the sample's tokens, as `usage` counts them.
        num_accepted: the number of the request's tokens that were accepted drafts.
    """

    queue: float
    prefill: float
    decode: float
    num_tokens: int
    num_accepted: int = 0

    @property
    def per_token(self) -> float | None:
        """The mean seconds between two tokens; None = the sample has only one token."""
        return self.decode / (self.num_tokens - 1) if self.num_tokens > 1 else None

    @property
    def tokens_per_second(self) -> float | None:
        """The sample's tokens per second since its admission; None = not measurable."""
        running = self.prefill + self.decode
        return self.num_tokens / running if running > 0 else None


PREFIX: Final = "fastovms_"
_FIRST_TOKEN_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
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
    """The record of a completed request.

    Attributes:
        seconds: the time from its arrival to its last token.
        finish_reasons: one for each sample of each prompt.
        num_prompt_tokens, num_generated_tokens: as in the `usage` of the answer.
        n: the number of samples of each prompt.
        max_tokens: the limit of each sample; None = only the context length.
        timings: the durations of samples, if known.
        longest: for each prompt, the number of tokens of its longest sample.
    """

    seconds: float
    finish_reasons: Sequence[str]
    num_prompt_tokens: int
    num_generated_tokens: int
    n: int
    max_tokens: int | None
    timings: Sequence[SampleTimings] = ()
    longest: Sequence[int] = ()


def _histogram(name: str, text: str, buckets: tuple[float, ...]) -> Series:
    return Series("histogram", name, text, buckets)


class GenerationMetrics:
    """The request counters and histograms of one model, exported by `GenerationCollector`.

    Values are recorded for every token, so histograms are plain integers that become Prometheus
    families only at a scrape. Used only on the event loop's thread.

    Attributes:
        has_kv_cache: whether to export series about a KV cache.
        labels: the constant labels of the model.
        finished: the number of samples by finish reason.
    """

    time_to_first_token: Annotated[
        Histogram,
        _histogram(
            "time_to_first_token_seconds",
            "Seconds from a request to its first token",
            _FIRST_TOKEN_BUCKETS,
        ),
    ]
    inter_token_latency: Annotated[
        Histogram,
        _histogram(
            "inter_token_latency_seconds", "Seconds between two tokens of a sample", STEP_BUCKETS
        ),
    ]
    request_queue_time: Annotated[
        Histogram,
        _histogram(
            "request_queue_time_seconds", "Seconds that a request waits to run", _REQUEST_BUCKETS
        ),
    ]
    request_prefill_time: Annotated[
        Histogram,
        _histogram(
            "request_prefill_time_seconds",
            "Seconds from the start of a request's run to its first token",
            _REQUEST_BUCKETS,
        ),
    ]
    request_decode_time: Annotated[
        Histogram,
        _histogram(
            "request_decode_time_seconds",
            "Seconds from the first to the last token of a request",
            _REQUEST_BUCKETS,
        ),
    ]
    request_time_per_output_token: Annotated[
        Histogram,
        _histogram(
            "request_time_per_output_token_seconds",
            "Mean seconds between the tokens of a sample",
            STEP_BUCKETS,
        ),
    ]
    e2e_request_latency: Annotated[
        Histogram,
        _histogram(
            "e2e_request_latency_seconds",
            "Seconds from a request to its last token",
            _REQUEST_BUCKETS,
        ),
    ]
    request_prompt_tokens: Annotated[
        Histogram,
        _histogram("request_prompt_tokens", "Prompt tokens of a request", _NUMBER_BUCKETS),
    ]
    request_generation_tokens: Annotated[
        Histogram,
        _histogram("request_generation_tokens", "Tokens generated for a request", _NUMBER_BUCKETS),
    ]
    request_max_num_generation_tokens: Annotated[
        Histogram,
        _histogram(
            "request_max_num_generation_tokens",
            "Tokens of a prompt's longest sample",
            _NUMBER_BUCKETS,
        ),
    ]
    request_params_n: Annotated[
        Histogram,
        _histogram("request_params_n", "Samples that a request asks for (n)", _SAMPLE_BUCKETS),
    ]
    request_params_max_tokens: Annotated[
        Histogram,
        _histogram(
            "request_params_max_tokens",
            "Most tokens of a sample that a request asks for (max_tokens)",
            _NUMBER_BUCKETS,
        ),
    ]

    def __init__(
        self,
        model_name: str,
        stats: Callable[[], BackendStats],
        labels: Mapping[str, str] | None = None,
        *,
        has_kv_cache: bool = True,
    ) -> None:
        """
        Args:
            stats: returns the backend's statistics; called at every scrape until `end`.
        """
        self.model_name = model_name
        self.has_kv_cache = has_kv_cache
        self._stats = stats
        self._before: BackendStats | None = None
        self.labels = labels or {}
        self.finished: Counter[str] = Counter()
        for name, series in series_of(GenerationMetrics):
            setattr(self, name, Histogram(series.buckets))

    def stats(self) -> BackendStats:
        """Returns the backend's counters, including those of earlier loads of the model."""
        stats = self._stats()
        return stats if self._before is None else continued(self._before, stats)

    def end(self) -> None:
        """Stops asking the closed backend; its event counters stay."""
        counted = continued(self.stats(), BackendStats())
        self._before, self._stats = None, lambda: counted

    def continue_from(self, earlier: GenerationMetrics) -> None:
        """Continues the counters of an earlier load of the same model."""
        self._before = earlier.stats()
        self.finished = earlier.finished
        for name, _ in series_of(GenerationMetrics):
            setattr(self, name, getattr(earlier, name))

    def texts_encoded(self, queue_time: float, compute_time: float) -> None:
        """Records the seconds for which a request's texts waited, and were encoded."""
        self.request_queue_time.observe(queue_time)
        self.request_prefill_time.observe(compute_time)

    def request_finished(self, request: FinishedRequest) -> None:
        """Records a completed request."""
        self.e2e_request_latency.observe(request.seconds)
        self.finished.update(request.finish_reasons)
        self.request_prompt_tokens.observe(request.num_prompt_tokens)
        self.request_generation_tokens.observe(request.num_generated_tokens)
        self.request_params_n.observe(request.n)
        if request.max_tokens is not None:
            self.request_params_max_tokens.observe(request.max_tokens)
        for num_tokens in request.longest:
            self.request_max_num_generation_tokens.observe(num_tokens)
        for timings in request.timings:
            self.request_prefill_time.observe(timings.prefill)
            self.request_decode_time.observe(timings.decode)
            if timings.per_token is not None:
                self.request_time_per_output_token.observe(timings.per_token)


_KV_CACHE_USAGE: Final = Gauge(
    "kv_cache_usage_perc", "Share of the KV cache blocks in use, 1 = all"
)


class GenerationCollector(Collector):
    """Exports the metrics of every model, with the label `model_name`. `models` returns the metrics
    of all models."""

    def __init__(self, models: Callable[[], Sequence[GenerationMetrics]]) -> None:
        self._models = models

    def collect(self) -> Iterable[Metric]:
        models = self._models()
        stats = {model.model_name: model.stats() for model in models}
        labels = {model.model_name: model.labels for model in models}
        yield _info("model_info", "Always 1; labels describe the model", labels)
        cached = {m.model_name: stats[m.model_name] for m in models if m.has_kv_cache}
        labels = {name: _cache_labels(values) for name, values in cached.items()}
        yield _info("cache_config_info", "Always 1; labels give the size of the KV cache", labels)
        labels = {name: _kernel_labels(values) for name, values in stats.items()}
        text = "Always 1; labels say whether the decode kernels are in use"
        yield _info("decode_kernels_info", text, labels)
        yield from _families(BackendStats, stats)
        usage = {model_name: values.kv_cache_usage for model_name, values in cached.items()}
        yield family(_KV_CACHE_USAGE, usage)
        yield _finished(models)
        yield from _families(GenerationMetrics, {m.model_name: m for m in models})


def _finished(models: Sequence[GenerationMetrics]) -> Metric:
    finished = CounterMetricFamily(
        f"{PREFIX}request_success",
        "Samples that ran to their end",
        labels=["model_name", "finished_reason"],
    )
    for model in models:
        for reason, count in model.finished.items():
            finished.add_metric([model.model_name, reason], count)
    return finished


def _info(name: str, text: str, labels: Mapping[str, Mapping[str, str]]) -> Metric:
    """Returns a metric family with the value 1 per model, and labels that describe the model."""
    info = GaugeMetricFamily(f"{PREFIX}{name}", text)
    for model_name, of_model in labels.items():
        info.add_sample(info.name, {"model_name": model_name, **of_model}, 1.0)
    return info


def _cache_labels(stats: BackendStats) -> Mapping[str, str]:
    """Returns the labels for prefix-aware routers. `num_gpu_blocks` is vLLM's name for the number
    of blocks, which dashboards and llm-d's router expect."""
    num_blocks = str(stats.num_blocks)
    block_size = str(stats.block_size)
    return {"block_size": block_size, "num_blocks": num_blocks, "num_gpu_blocks": num_blocks}


def _kernel_labels(stats: BackendStats) -> Mapping[str, str]:
    """Returns the labels `state` and `reason` of `decode_kernels_info`."""
    state, _, reason = stats.decode_kernels.partition(": ")
    return {"state": state, "reason": reason}


def _families(statistics: type, of_models: Mapping[str, object]) -> Iterable[Metric]:
    """Yields the metric families of all series of the class `statistics`, with one sample per
    model."""
    for path, series in series_of(statistics):
        read = attrgetter(path)
        yield family(series, {name: read(values) for name, values in of_models.items()})


def family(series: Series, of_models: Mapping[str, Any]) -> Metric:
    """Returns a metric family with one sample per model. A missing histogram is exported as
    empty."""
    name = PREFIX + series.name
    if series.kind == "histogram":
        histograms = HistogramMetricFamily(name, series.text, labels=["model_name"])
        for model_name, histogram in of_models.items():
            buckets, total = (histogram or Histogram(series.buckets)).buckets()
            histograms.add_metric([model_name], buckets, total)
        return histograms
    make_family = GaugeMetricFamily if series.kind == "gauge" else CounterMetricFamily
    numbers = make_family(name, series.text, labels=["model_name"])
    for model_name, number in of_models.items():
        numbers.add_metric([model_name], number)
    return numbers


def render(
    registry: CollectorRegistry, accept: str, names: Collection[str] = ()
) -> tuple[bytes, str]:
    """Returns the exposition of the registry and its content type, in the format that the `Accept`
    header prefers. `names` are the series or families to export; empty = all."""
    encode, content_type = choose_encoder(accept)
    return encode(_ChosenSeries(registry, names) if names else registry), content_type


class _ChosenSeries(Collector):
    """The metrics of another collector, filtered by name."""

    def __init__(self, collector: Collector, names: Collection[str]) -> None:
        self._collector = collector
        self._names = frozenset(names)

    def collect(self) -> Iterable[Metric]:
        names = self._names
        for family in self._collector.collect():
            chosen = Metric(family.name, family.documentation, family.type, family.unit)
            is_whole = family.name in names
            chosen.samples = [one for one in family.samples if is_whole or one.name in names]
            if chosen.samples:
                yield chosen
