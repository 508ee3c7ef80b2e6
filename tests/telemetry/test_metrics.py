"""Tests of `fastovms/telemetry/metrics.py`."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter

import pytest
from prometheus_client import CollectorRegistry

from fastovms.backend_stats import (
    BATCH_BUCKETS,
    BackendStats,
    EncoderCounters,
    EngineCounters,
    GrammarStats,
    Histogram,
    StoredPrefixStats,
    series_of,
)
from fastovms.telemetry.metrics import GenerationCollector, GenerationMetrics, SampleTimings

# How long the phases of a sample took.


@pytest.mark.parametrize(
    ("timings", "per_token", "tokens_per_second"),
    [
        (SampleTimings(9.0, 1.0, 4.0, 5), 1.0, 1.0),
        (SampleTimings(9.0, 0.5, 0.0, 1), None, 2.0),
        (SampleTimings(9.0, 0.0, 0.0, 1), None, None),
    ],
)
def test_means_need_more_than_one_token_and_a_duration(
    timings: SampleTimings, per_token: float | None, tokens_per_second: float | None
) -> None:
    assert timings.per_token == per_token
    assert timings.tokens_per_second == tokens_per_second


# What is counted is exported, each number under a name of its own.


NOT_EXPORTED = {
    "num_steps", "num_prefill_tokens", "block_size", "num_free_blocks", "step_allowance",
    "decode_kernels",
}  # fmt: skip
"""`step_seconds` counts the steps, `kv_cache_usage_perc` and `cache_config_info` tell of the
blocks, `num_prompt_tokens` of prompts, `decode_kernels_info` of the kernels, and only
the watch needs the allowance."""


def numbered(statistics: type, first: int) -> dict[str, int]:
    """Each field that is a number, with a value of its own."""
    names = [field.name for field in fields(statistics) if str(field.default) in ("0", "0.0")]
    return {name: number for number, name in enumerate(names, first)}


STATS = BackendStats(
    grammars=GrammarStats(**numbered(GrammarStats, 100)),
    counters=EngineCounters(**numbered(EngineCounters, 200)),
    encoder=EncoderCounters(batch_sizes=Histogram((1.0,)), **numbered(EncoderCounters, 400)),
    step_seconds=Histogram((1.0,)),
    **numbered(BackendStats, 300),
)


def scraped() -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(GenerationCollector(lambda: [GenerationMetrics("m", lambda: STATS)]))
    return registry


@pytest.mark.parametrize("path", [path for path, _ in series_of(BackendStats)])
def test_a_statistic_has_the_value_of_its_field(path: str) -> None:
    series = dict(series_of(BackendStats))[path]
    suffix = {"gauge": "", "counter": "_total", "histogram": "_count"}[series.kind]
    value = attrgetter(path)(STATS)
    if series.kind == "histogram":
        value = value.count
    sample = scraped().get_sample_value(f"fastovms_{series.name}{suffix}", {"model_name": "m"})
    assert sample == value


def test_every_statistic_is_exported_or_left_out_on_purpose() -> None:
    exported = {path.rpartition(".")[2] for path, _ in series_of(BackendStats)}
    named = {
        field.name
        for kind in (BackendStats, EncoderCounters, EngineCounters, GrammarStats, StoredPrefixStats)
        for field in fields(kind)
    }
    parts = {"grammars", "counters", "encoder", "stored_prefixes"}
    assert named - parts == exported | NOT_EXPORTED


def test_no_two_series_share_a_name() -> None:
    names = [
        series.name for kind in (BackendStats, GenerationMetrics) for _, series in series_of(kind)
    ]
    assert len(names) == len(set(names))


def test_a_histogram_that_has_not_begun_is_an_empty_one() -> None:
    registry = CollectorRegistry()
    registry.register(GenerationCollector(lambda: [GenerationMetrics("m", BackendStats)]))
    assert registry.get_sample_value("fastovms_step_seconds_count", {"model_name": "m"}) == 0
    assert registry.get_sample_value("fastovms_kv_cache_usage_perc", {"model_name": "m"}) == 0


def test_a_model_without_a_cache_has_no_series_of_one() -> None:
    registry = CollectorRegistry()
    models = [GenerationMetrics("m", lambda: STATS, has_kv_cache=False)]
    registry.register(GenerationCollector(lambda: models))
    families = {family.name: family.samples for family in registry.collect()}
    assert families["fastovms_kv_cache_usage_perc"] == []
    assert families["fastovms_cache_config_info"] == []
    assert families["fastovms_num_requests_running"]


def test_the_counts_of_a_model_go_on_after_its_next_load() -> None:
    sizes = Histogram(BATCH_BUCKETS)
    sizes.observe(3)
    stats = BackendStats(encoder=EncoderCounters(num_texts=3, batch_sizes=sizes))
    earlier = GenerationMetrics("m", lambda: stats)
    earlier.end()
    later = GenerationMetrics("m", lambda: stats)
    later.continue_from(earlier)
    counted = later.stats().encoder
    assert (counted.num_texts, counted.batch_sizes.count) == (6, 2)


def test_cache_config_metric_has_vllm_labels() -> None:
    labels = {
        "model_name": "m",
        "block_size": str(STATS.block_size),
        "num_blocks": str(STATS.num_blocks),
        "num_gpu_blocks": str(STATS.num_blocks),
    }
    assert STATS.block_size != STATS.num_blocks
    assert scraped().get_sample_value("fastovms_cache_config_info", labels) == 1
