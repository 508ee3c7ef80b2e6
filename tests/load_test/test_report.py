"""Tests of `fastovms/parts/load_test/report.py`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from docs.check_site import loads_of_page
from fastovms.errors import ConfigurationError, RequestFailed
from fastovms.parts.load_test.config import LATENCIES, LoadConfig
from fastovms.parts.load_test.report import (
    Distribution,
    Load,
    Timeline,
    check_plots,
    details,
    draw,
    html_page,
    paired_ratios,
    render,
    render_ratios,
    summarize,
    tokens_by_second,
    values,
)

TOKEN = b'{"choices": [{"text": "a"}]}'


def recorded(*events: tuple[bytes, float]) -> Timeline:
    timeline = Timeline(started=10.0)
    for data, now in events:
        timeline.record(data, now)
    return timeline


def test_timeline_is_read_from_the_events_of_a_stream() -> None:
    role = b'{"choices": [{"delta": {"role": "assistant", "content": ""}}]}'
    usage = b'{"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 5}}'
    timeline = recorded(
        (role, 10.5), (TOKEN, 11.0), (TOKEN, 11.5), (TOKEN, 13.0), (usage, 14.0), (b"[DONE]", 15.0)
    )
    assert timeline.time_to_first_token == 1.0
    assert timeline.gaps == [0.5, 1.5]
    assert timeline.latency == 3.0
    assert (timeline.prompt_tokens, timeline.num_tokens) == (4, 5)
    assert timeline.time_per_output_token == 0.5


def test_timeline_without_usage_counts_events() -> None:
    assert recorded((TOKEN, 11.0)).time_per_output_token is None
    timeline = recorded((TOKEN, 11.0), (TOKEN, 12.0))
    assert (timeline.prompt_tokens, timeline.completion_tokens) == (None, None)
    assert timeline.num_tokens == 2


def test_error_in_a_stream_is_raised() -> None:
    with pytest.raises(RequestFailed, match="gone"):
        recorded((b'{"error": "gone"}', 11.0))


def test_load_lasts_until_its_last_request_has_ended() -> None:
    hanging = Timeline(started=9.0, failure=RequestFailed("timeout", ""), ended=609.0)
    assert Load.of([recorded((TOKEN, 11.0), (TOKEN, 13.0)), hanging]).seconds == 600.0


def test_load_without_a_known_end_lasts_to_the_last_output() -> None:
    failed = Timeline(started=9.0, failure=RequestFailed("timeout", ""))
    load = Load.of([recorded((TOKEN, 11.0), (TOKEN, 13.0)), failed])
    assert load.seconds == 4.0
    assert (load.num_tokens, load.num_events) == (2, 2)
    assert load.tokens_per_second == 0.5


def timeline(started: float, *arrivals: float, tokens: int | None = None) -> Timeline:
    prompt = None if tokens is None else 10
    return Timeline(started, list(arrivals), prompt_tokens=prompt, completion_tokens=tokens)


STREAMS = [timeline(0.0, 0.5, 1.0, 1.5, tokens=3), timeline(1.0, 1.5, 2.0, tokens=5)]


def test_summary_has_tokens_and_requests_per_second() -> None:
    summary = summarize(Load.of(STREAMS))
    assert (summary.completed, summary.failed) == (2, 0)
    assert (summary.total_input_tokens, summary.total_output_tokens) == (20, 8)
    assert summary.duration == 2.0
    assert summary.request_throughput == 1.0
    assert summary.output_throughput == 4.0
    assert summary.total_token_throughput == 14.0
    assert summary.max_concurrent_requests == 2
    assert not summary.counts_events


def test_summary_has_mean_and_percentiles_of_latencies() -> None:
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


def test_failures_are_counted_by_kind() -> None:
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


def test_summary_without_usage_counts_events() -> None:
    summary = summarize(Load.of([timeline(0.0, 1.0, 2.0)]))
    assert summary.counts_events
    assert summary.total_output_tokens == 2
    assert summary.total_input_tokens is None
    assert summary.total_token_throughput is None


def test_tokens_are_counted_by_second() -> None:
    assert tokens_by_second(STREAMS) == pytest.approx([1, 4.5, 2.5])


CONFIG = LoadConfig(max_concurrency=4, request_rate=2.0)
LOAD = Load.of(
    [
        Timeline(0.0, [0.5, 1.0], prompt_tokens=10, completion_tokens=2),
        Timeline(0.0, failure=RequestFailed("HTTP 429", "busy")),
    ]
)
SUMMARY = summarize(LOAD, latencies=LATENCIES, percentiles=[90, 99.9], goodput={"ttft": 600})


def test_report_has_the_form_of_vllm() -> None:
    text = render(SUMMARY, CONFIG)
    assert text.splitlines()[0] == "============ Serving Benchmark Result ============"
    for line in (
        "Successful requests:                     1",
        "Failed requests:                         1",
        "  HTTP 429:                              1 (busy)",
        "Maximum request concurrency:             4",
        "Request rate configured (RPS):           2.00",
        "Benchmark duration (s):                  1.00",
        "Total input tokens:                      10",
        "Request goodput (req/s):                 1.00",
        "Output token throughput (tok/s):         2.00",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          500.00",
        "P99.9 ITL (ms):                          500.00",
        "Median E2EL (ms):                        1000.00",
    ):
        assert line in text.splitlines(), line
    assert "no usage" not in text


def test_report_leaves_out_unknown_figures() -> None:
    text = render(summarize(Load.of([Timeline(0.0, [0.5, 1.0])])), LoadConfig())
    assert "Total input tokens:                      -" in text
    assert "The server sends no usage" in text
    assert "Request rate" not in text


def test_json_result_has_the_names_of_vllm() -> None:
    found = json.loads(json.dumps(values(SUMMARY, CONFIG)))
    assert found["completed"] == found["failed"] == 1
    assert found["errors_by_kind"] == {"HTTP 429": 1}
    assert found["output_throughput"] == 2.0
    assert found["median_ttft_ms"] == found["p99.9_ttft_ms"] == 500.0
    assert values(SUMMARY, LoadConfig())["request_rate"] == "inf"


def test_details_are_of_each_request() -> None:
    assert details(LOAD) == {
        "input_lens": [10, None],
        "output_lens": [2, 0],
        "start_times": [0.0, 0.0],
        "ttfts": [0.5, None],
        "itls": [[0.5], []],
        "latencies": [1.0, None],
        "errors": [None, "HTTP 429: busy"],
    }


def test_ratios_are_paired_by_rounds() -> None:
    fast = [replace(SUMMARY, output_throughput=value) for value in (4.0, 8.0, 6.0)]
    slow = [replace(SUMMARY, output_throughput=value) for value in (2.0, 8.0, 2.0)]
    ratios = paired_ratios(fast, slow)
    assert ratios["output_throughput"] == {
        "url": 6.0, "compare": 2.0, "ratio": 2.0, "min": 1.0, "max": 3.0
    }  # fmt: skip
    assert ratios["median_ttft_ms"]["ratio"] == 1.0
    table = render_ratios(ratios)
    assert "output_throughput             6.00        2.00   2.000 (1.000 to 3.000)" in table


def test_ratios_without_a_whole_round_are_empty() -> None:
    assert paired_ratios([], []) == {}
    dead = replace(SUMMARY, output_throughput=0.0, latencies={})
    assert set(paired_ratios([SUMMARY], [dead])) == {"request_throughput"}


LOAD_PAGE_LOAD = Load.of(
    [Timeline(0.0, [0.1 * i for i in range(1, 20)]), Timeline(0.2, [0.5, 1.5])]
)


def test_html_page_escapes_text_and_loads_no_resources() -> None:
    svg = draw({"http://a": [LOAD_PAGE_LOAD], "http://b": [LOAD_PAGE_LOAD, LOAD_PAGE_LOAD]})
    assert svg == draw(
        {"http://a": [LOAD_PAGE_LOAD], "http://b": [LOAD_PAGE_LOAD, LOAD_PAGE_LOAD]}
    ), "the same loads give the same file"
    page = html_page("bench <a>", "Mean TTFT (ms): <5", svg)
    assert page.startswith("<!doctype html>")
    assert loads_of_page(page) == []
    assert "<h1>bench &lt;a&gt;</h1>" in page
    assert "Mean TTFT (ms): &lt;5" in page
    assert "time to first token, ms" in page
    assert "http://b" in page


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    check_plots()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[plots\]'"):
        check_plots()


def test_load_without_requests_has_an_empty_summary_and_drawing() -> None:
    load = Load.of([])
    assert load.tokens_per_second == 0
    summary = summarize(load, latencies=["ttft", "itl"], percentiles=[99])
    assert summary.latencies == {}
    assert summary.output_throughput == summary.max_output_tokens_per_s == 0
    assert "http://a" not in draw({"http://a": [load]})
