from __future__ import annotations

import pytest

from fastovms.client.request_failed import RequestFailed
from fastovms.load_test.load_summary import Distribution, summarize, tokens_by_second
from fastovms.load_test.timeline import Load, Timeline


def timeline(started: float, *arrivals: float, tokens: int | None = None) -> Timeline:
    prompt = None if tokens is None else 10
    return Timeline(started, list(arrivals), prompt_tokens=prompt, completion_tokens=tokens)


STREAMS = [timeline(0.0, 0.5, 1.0, 1.5, tokens=3), timeline(1.0, 1.5, 2.0, tokens=5)]


def test_throughput() -> None:
    summary = summarize(Load.of(STREAMS))
    assert (summary.completed, summary.failed) == (2, 0)
    assert (summary.total_input_tokens, summary.total_output_tokens) == (20, 8)
    assert summary.duration == 2.0
    assert summary.request_throughput == 1.0
    assert summary.output_throughput == 4.0
    assert summary.total_token_throughput == 14.0
    assert summary.max_concurrent_requests == 2
    assert not summary.counts_events


def test_latencies() -> None:
    names = ("ttft", "tpot", "itl", "e2el")
    found = summarize(Load.of(STREAMS), latencies=names, percentiles=[50, 100]).latencies
    assert found["ttft"] == Distribution(500, 500, 0, {50: 500, 100: 500})
    assert found["tpot"].percentiles == {50: 312.5, 100: 500}
    assert found["itl"].mean == 500
    assert found["e2el"].median == 1250


def test_requests_within_all_limits_are_good() -> None:
    def goodput(**limits: float) -> float | None:
        return summarize(Load.of(STREAMS), goodput=limits).request_goodput

    assert goodput() is None
    assert goodput(ttft=500) == 1.0
    assert goodput(ttft=500, tpot=200) == 0.5
    assert goodput(ttft=499) == 0


def test_failures_are_counted_by_kind_and_nowhere_else() -> None:
    failed = [
        Timeline(0.0, failure=RequestFailed("HTTP 429", "one")),
        Timeline(0.0, failure=RequestFailed("HTTP 429", "two")),
        Timeline(0.0, [1.9], failure=RequestFailed("timeout", "")),
    ]
    summary = summarize(Load.of([*STREAMS, *failed]), latencies=["ttft"])
    assert summary.errors == {"HTTP 429": 2, "timeout": 1}
    assert summary.reasons == {"HTTP 429": "one", "timeout": ""}
    assert (summary.completed, summary.failed) == (2, 3)
    assert summary.total_output_tokens == 8


def test_without_usage() -> None:
    summary = summarize(Load.of([timeline(0.0, 1.0, 2.0)]))
    assert summary.counts_events
    assert summary.total_output_tokens == 2
    assert summary.total_input_tokens is None
    assert summary.total_token_throughput is None


def test_nothing() -> None:
    summary = summarize(Load.of([]), latencies=["ttft", "itl"], percentiles=[99])
    assert summary.latencies == {}
    assert summary.output_throughput == summary.max_output_tokens_per_s == 0


def test_tokens_by_second() -> None:
    assert tokens_by_second(STREAMS) == pytest.approx([1, 4.5, 2.5])
