"""Configuration of a load test."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Final


def arrival_times(
    number: int, request_rate: float, burstiness: float, rng: random.Random
) -> list[float]:
    """Returns the start times of requests in seconds, beginning with 0.

    Intervals have a gamma distribution of the shape `burstiness`, which for 1 is that of a Poisson
    process. They are scaled so that the whole load matches the rate exactly.

    Args:
        request_rate: requests a second; infinite = all at once.
    """
    if math.isinf(request_rate) or number < 2:
        return [0.0] * number
    times = list(
        accumulate((rng.gammavariate(burstiness, 1.0) for _ in range(number - 1)), initial=0.0)
    )
    scale = (number - 1) / request_rate / times[-1] if times[-1] else 0.0
    return [time * scale for time in times]


# Declares what a load test does. Each default stands here and nowhere else.


BACKENDS: Final[Mapping[str, str]] = {"openai": "/completions", "openai-chat": "/chat/completions"}
"""The path of each API that is asked."""

DATA_SETS: Final = ("random", "prefix_repetition", "sharegpt", "custom")
LATENCIES: Final = ("ttft", "tpot", "itl", "e2el")
"""Time to the first token, time per output token, inter-token latency, end-to-end latency."""


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """The load, and the contents of the report. Names are those of `vllm bench serve`.

    Attributes:
        backend: the API, one of `BACKENDS`.
        endpoint: path of the requests on the server; None = the URL's path and the backend's.
        model: None = the first that the server lists.
        api_key: None = none.
        headers: additional headers of every request.
        insecure: accept any certificate.
        num_prompts: requests of one round.
        num_warmups: requests before the first round, which are not counted.
        request_rate: requests a second; infinite = all at once.
        burstiness: the shape of the gamma distribution of the intervals: 1 = a Poisson process,
            less = bursts, more = evenly.
        max_concurrency: requests that run at the same time; further ones wait; None = unlimited.
        request_timeout: seconds after which a request is cancelled.
        seed: seed of prompts and intervals; each round derives its own.
        ignore_eos: generate every answer to its full length.
        temperature: None = the server's default.
        extra_body: additional fields of every request.
        rounds: number of rounds when two servers are compared, with new random prompts in each.
        percentile_metrics: the latencies to report, of `LATENCIES`.
        metric_percentiles: the percentiles to report.
        goodput: the limits of a good request in milliseconds, by latency.
    """

    backend: str = "openai"
    endpoint: str | None = None
    model: str | None = None
    api_key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    insecure: bool = False
    num_prompts: int = 100
    num_warmups: int = 1
    request_rate: float = float("inf")
    burstiness: float = 1.0
    max_concurrency: int | None = None
    request_timeout: float = 600.0
    seed: int = 0
    ignore_eos: bool = False
    temperature: float | None = None
    extra_body: Mapping[str, object] = field(default_factory=dict)
    rounds: int = 5
    percentile_metrics: tuple[str, ...] = LATENCIES
    metric_percentiles: tuple[float, ...] = (90.0, 99.0)
    goodput: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataConfig:
    """The requests of a load test. Lengths in tokens.

    Attributes:
        dataset_name: one of `DATA_SETS`.
        dataset_path: the file of a data set that has one.
        random_input_len, random_output_len: lengths in the data set "random".
        random_range_ratio: lengths vary uniformly within ± this fraction.
        prefix_repetition_prefix_len, prefix_repetition_suffix_len: of the data set
            "prefix_repetition", whose prompts begin with one of a few prefixes.
        prefix_repetition_num_prefixes: how many prefixes there are.
        prefix_repetition_output_len: answer length of that data set.
        output_len: answer length for data sets from files; None = the file's lengths, or
            `DEFAULT_OUTPUT_LEN`.
    """

    dataset_name: str = "random"
    dataset_path: str | None = None
    random_input_len: int = 256
    random_output_len: int = 128
    random_range_ratio: float = 0.0
    prefix_repetition_prefix_len: int = 256
    prefix_repetition_suffix_len: int = 256
    prefix_repetition_num_prefixes: int = 10
    prefix_repetition_output_len: int = 128
    output_len: int | None = None


DEFAULT_OUTPUT_LEN: Final = 256
"""Tokens of an answer whose length a file does not say."""


@dataclass(frozen=True, slots=True)
class ReportConfig:
    """The reports of a load test, and their files.

    Attributes:
        compare: URL of a second server, which gets the same load in turn; None = no comparison.
        json: print JSON in place of the text.
        result_filename: file for that JSON; None = `save_result` names one.
        save_result: save the JSON in a file named after the time.
        save_detailed: the JSON has the figures of every request.
        html: file for a page with plots.
        svg: file for the plots alone.
        disable_tqdm: show no progress.
    """

    compare: str | None = None
    json: bool = False
    result_filename: Path | None = None
    save_result: bool = False
    save_detailed: bool = False
    html: Path | None = None
    svg: Path | None = None
    disable_tqdm: bool = False
