"""Configuration of a load test."""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

from fastovms.setting import (
    FILE,
    JSON,
    SOME_TIME,
    SWITCH,
    Kind,
    integers,
    name_of,
    number,
    setting,
    texts,
)


def arrival_times(
    number: int, request_rate: float, burstiness: float, rng: random.Random
) -> list[float]:
    """Returns the start times of requests in seconds, beginning with 0.

    The intervals have a gamma distribution with shape `burstiness`; for 1 the load is a Poisson
    process. They are scaled so that the whole load has exactly the requested rate.

    Args:
        request_rate: requests per second; infinite = all at once.
    """
    if math.isinf(request_rate) or number < 2:
        return [0.0] * number
    times = list(
        accumulate((rng.gammavariate(burstiness, 1.0) for _ in range(number - 1)), initial=0.0)
    )
    scale = (number - 1) / request_rate / times[-1] if times[-1] else 0.0
    return [time * scale for time in times]


BACKENDS: Final[Mapping[str, str]] = {"openai": "/completions", "openai-chat": "/chat/completions"}
"""The endpoint of each API that can be tested."""

DATA_SETS: Final = ("random", "prefix_repetition", "sharegpt", "custom")
LATENCIES: Final = ("ttft", "tpot", "itl", "e2el")
"""Time to the first token, time per output token, inter-token latency, end-to-end latency."""


_TOKENS: Final = integers(1, metavar="TOKENS")
_GOODPUT: Final = ("ttft", "tpot", "e2el")


def _rate(value: str) -> float:
    return math.inf if value == "inf" else number("requests a second, or inf", positive=True)(value)


def _ratio(value: str) -> float:
    parsed = number("shares")(value)
    if parsed >= 1:
        raise argparse.ArgumentTypeError(f"must be 0 or more and less than 1, not {value!r}")
    return parsed


def _header(value: str) -> tuple[str, str]:
    name, separator, content = value.partition("=")
    if not separator or not name.isascii() or not name.strip() or "\n" in value:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, not {value!r}")
    return name.strip(), content.strip()


def _listed(read: Callable[[str], object]) -> Callable[[str], tuple[object, ...]]:
    def parse(value: str) -> tuple[object, ...]:
        return tuple(read(item.strip()) for item in value.split(","))

    return parse


def _percentile(value: str) -> float:
    parsed = number("percent")(value)
    if parsed > 100:
        raise argparse.ArgumentTypeError(f"must be from 0 to 100, not {value!r}")
    return parsed


def _goodput(value: str) -> Mapping[str, float]:
    limits = {}
    for item in value.split(","):
        name, _, limit = item.partition(":")
        limits[name_of(*_GOODPUT)(name.strip())] = number("milliseconds")(limit)
    return limits


def _show_list(value: object) -> str:
    assert isinstance(value, tuple)
    return ",".join(f"{item:g}" if isinstance(item, float) else str(item) for item in value)


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """The load, and the contents of the report. Names are those of `vllm bench serve`."""

    # fmt: off
    backend: str = setting("openai", Kind("API", name_of(*BACKENDS)),
        "API that requests use: openai = /completions, openai-chat = /chat/completions",
        group="load")
    endpoint: str | None = setting(None, texts("PATH"),
        "path of requests on the server (default: the path of URL and of --backend)")
    model: str | None = setting(None, texts("NAME"),
        "name of the model in requests (default: the server's first model)")
    api_key: str | None = setting(None, texts("KEY"),
        "API key of the server (default: the environment variable OPENAI_API_KEY)")
    headers: tuple[tuple[str, str], ...] = setting((), Kind("NAME=VALUE", _header),
        "further HTTP header of every request; may be given several times", flag="--header",
        repeats=True)
    insecure: bool = setting(False, SWITCH, "accept any TLS certificate of the server")
    num_prompts: int = setting(100, integers(1), "number of requests in one round")
    num_warmups: int = setting(1, integers(0),
        "number of requests before the measurement, which are not counted")
    request_rate: float = setting(math.inf, Kind("RATE", _rate),
        "number of requests a second, at random intervals; inf = all at once")
    burstiness: float = setting(1.0, Kind("SHAPE", number("shapes", positive=True)),
        "shape of the gamma distribution of the intervals of requests: 1 = a Poisson process, "
        "less = bursts, more = even intervals")
    max_concurrency: int | None = setting(None, integers(1),
        "number of requests that run at the same time; more wait (default: no limit)")
    request_timeout: float = setting(600.0, SOME_TIME,
        "time after which a request counts as failed")
    seed: int = setting(0, integers(0), "seed of the random prompts and intervals")
    ignore_eos: bool = setting(False, SWITCH,
        "generate every answer to its full length; this server and vLLM support it")
    temperature: float | None = setting(None, Kind("T", number("degrees")),
        "sampling temperature of every request (default: the server's)")
    extra_body: Mapping[str, object] = setting({}, JSON, "further fields of every request body")
    rounds: int = setting(5, integers(1), "number of rounds per server with --compare",
        group="report", after="--compare")
    percentile_metrics: tuple[str, ...] = setting(LATENCIES,
        Kind("NAMES", _listed(name_of(*LATENCIES)), _show_list),
        "latencies to report, separated by commas", after="--rounds")
    metric_percentiles: tuple[float, ...] = setting((90.0, 99.0),
        Kind("PERCENT", _listed(_percentile), _show_list),
        "percentiles of the latencies to report, separated by commas",
        after="--percentile-metrics")
    goodput: Mapping[str, float] = setting({}, Kind("LIMITS", _goodput),
        "report the requests a second that are within limits in milliseconds, such as "
        "ttft:500,tpot:50,e2el:10000", after="--metric-percentiles")
    # fmt: on


@dataclass(frozen=True, slots=True)
class DataConfig:
    """The requests of a load test. Lengths in tokens."""

    # fmt: off
    dataset_name: str = setting("random", Kind("NAME", name_of(*DATA_SETS)),
        f"source of the prompts: {', '.join(DATA_SETS)}", group="data sets")
    dataset_path: str | None = setting(None, texts("FILE"),
        "file of the data set sharegpt (JSON) or custom (JSON lines with prompt and "
        "output_tokens)")
    random_input_len: int = setting(256, _TOKENS, "length of random prompts")
    random_output_len: int = setting(128, _TOKENS, "length of the answers to random prompts")
    random_range_ratio: float = setting(0.0, Kind("SHARE", _ratio),
        "share by which the lengths of random prompts and answers vary, up and down")
    prefix_repetition_prefix_len: int = setting(256, _TOKENS,
        "length of the prefixes that prompts of the data set prefix_repetition share")
    prefix_repetition_suffix_len: int = setting(256, _TOKENS,
        "length of the differing part of each prompt of the data set prefix_repetition")
    prefix_repetition_num_prefixes: int = setting(10, integers(1),
        "number of prefixes of the data set prefix_repetition")
    prefix_repetition_output_len: int = setting(128, _TOKENS,
        "length of the answers of the data set prefix_repetition")
    output_len: int | None = setting(None, _TOKENS,
        "length of the answers to prompts from a file (default: as in the file)")
    # fmt: on


DEFAULT_OUTPUT_LEN: Final = 256
"""The number of output tokens of a request for which the file gives none."""


@dataclass(frozen=True, slots=True)
class ReportConfig:
    """The reports of a load test, and the files that they are saved in."""

    # fmt: off
    compare: str | None = setting(None, texts("URL2"),
        "base URL of a second server, which gets the same load in turn; the ratios of paired "
        "rounds are printed", group="report")
    json: bool = setting(False, SWITCH, "print the results as JSON instead of text")
    save_result: bool = setting(False, SWITCH,
        "write the results as JSON to a file named after the time")
    result_filename: Path | None = setting(None, FILE, "write the results as JSON to this file")
    save_detailed: bool = setting(False, SWITCH,
        "write the results as JSON, with the figures of every request")
    html: Path | None = setting(None, FILE,
        "write an HTML page with plots, which needs no network to read; needs the extra plots")
    svg: Path | None = setting(None, FILE, "write the plots to an SVG file")
    disable_tqdm: bool = setting(False, SWITCH, "show no progress bar")
    # fmt: on
