from __future__ import annotations

import json
from dataclasses import replace

from fastovms.client.request_failed import RequestFailed
from fastovms.load_test.load_config import LATENCIES, LoadConfig
from fastovms.load_test.load_report import details, paired_ratios, render, render_ratios, values
from fastovms.load_test.load_summary import summarize
from fastovms.load_test.timeline import Load, Timeline

CONFIG = LoadConfig(max_concurrency=4, request_rate=2.0)
LOAD = Load.of(
    [
        Timeline(0.0, [0.5, 1.0], prompt_tokens=10, completion_tokens=2),
        Timeline(0.0, failure=RequestFailed("HTTP 429", "busy")),
    ]
)
SUMMARY = summarize(LOAD, latencies=LATENCIES, percentiles=[90, 99.9], goodput={"ttft": 600})


def test_the_text_is_that_of_vllm() -> None:
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


def test_what_is_not_known_is_not_made_up() -> None:
    text = render(summarize(Load.of([Timeline(0.0, [0.5, 1.0])])), LoadConfig())
    assert "Total input tokens:                      -" in text
    assert "The server sends no usage" in text
    assert "Request rate" not in text


def test_json_has_vllms_names() -> None:
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


def test_ratios_without_a_whole_round() -> None:
    assert paired_ratios([], []) == {}
    dead = replace(SUMMARY, output_throughput=0.0, latencies={})
    assert set(paired_ratios([SUMMARY], [dead])) == {"request_throughput"}
