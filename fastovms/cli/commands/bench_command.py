"""Declares the flags of `fastovms bench`, and runs it."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Final

from fastovms.cli.commands.client_settings import client_settings
from fastovms.cli.flags.flag import Flag
from fastovms.cli.flags.flag_types import integer, json_object, name_of, number, path, text
from fastovms.config.settings import Fields, Settings
from fastovms.load_test.load_config import (
    BACKENDS,
    DATA_SETS,
    LATENCIES,
    DataConfig,
    LoadConfig,
    ReportConfig,
)

DATA: Final = Fields(DataConfig)
LOAD: Final = Fields(LoadConfig)
REPORT: Final = Fields(ReportConfig)

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


LOAD_FLAGS: Final = (
    Flag("--backend", LOAD.backend, "API", name_of(*BACKENDS),
         "openai = /completions, openai-chat = /chat/completions"),
    Flag("--endpoint", LOAD.endpoint, "PATH", text,
         "path of the requests on the server (default: the URL's and that of --backend)",
         shows_default=False),
    Flag("--model", LOAD.model, "NAME", text,
         "what requests ask for (default: the first model that the server lists)",
         shows_default=False),
    Flag("--api-key", LOAD.api_key, "KEY", text,
         "key that the server wants (default: the one in the environment's OPENAI_API_KEY)",
         shows_default=False),
    Flag("--header", LOAD.headers, "NAME=VALUE", _header,
         "further header of every request; may be given several times", shows_default=False,
         repeats=True),
    Flag("--insecure", LOAD.insecure, "", None, "accept any certificate"),
    Flag("--num-prompts", LOAD.num_prompts, "N", integer(1), "requests of one round"),
    Flag("--num-warmups", LOAD.num_warmups, "N", integer(0),
         "requests before it that count for nothing"),
    Flag("--request-rate", LOAD.request_rate, "RATE", _rate,
         "requests a second, at random intervals; inf = all at once"),
    Flag("--burstiness", LOAD.burstiness, "SHAPE", number("shapes", positive=True),
         "of the gamma distribution of the intervals: 1 = a Poisson process, less = bursts, more = "
         "evenly"),
    Flag("--max-concurrency", LOAD.max_concurrency, "N", integer(1),
         "requests that run at the same time; more wait (default: any number)",
         shows_default=False),
    Flag("--request-timeout", LOAD.request_timeout, "SECONDS", number("seconds", positive=True),
         "after which a request counts as failed"),
    Flag("--seed", LOAD.seed, "N", integer(0), "of prompts and intervals"),
    Flag("--ignore-eos", LOAD.ignore_eos, "", None,
         "have every answer run to its length; servers of vLLM's kind know it"),
    Flag("--temperature", LOAD.temperature, "T", number("degrees"),
         "of every request (default: the server's)", shows_default=False),
    Flag("--extra-body", LOAD.extra_body, "JSON", json_object,
         "further fields of every request", shows_default=False),
)  # fmt: skip

DATA_FLAGS: Final = (
    Flag("--dataset-name", DATA.dataset_name, "NAME", name_of(*DATA_SETS),
         f"what is asked: {', '.join(DATA_SETS)}"),
    Flag("--dataset-path", DATA.dataset_path, "FILE", text,
         "file of sharegpt (JSON) or custom (lines of JSON with prompt and output_tokens)",
         shows_default=False),
    Flag("--random-input-len", DATA.random_input_len, "TOKENS", integer(1), "of random prompts"),
    Flag("--random-output-len", DATA.random_output_len, "TOKENS", integer(1), "of their answers"),
    Flag("--random-range-ratio", DATA.random_range_ratio, "SHARE", _ratio,
         "by which both vary, up and down"),
    Flag("--prefix-repetition-prefix-len", DATA.prefix_repetition_prefix_len, "TOKENS", integer(1),
         "of the prefixes that prompts share"),
    Flag("--prefix-repetition-suffix-len", DATA.prefix_repetition_suffix_len, "TOKENS", integer(1),
         "of what each prompt has for itself"),
    Flag("--prefix-repetition-num-prefixes", DATA.prefix_repetition_num_prefixes, "N", integer(1),
         "how many prefixes there are"),
    Flag("--prefix-repetition-output-len", DATA.prefix_repetition_output_len, "TOKENS", integer(1),
         "of the answers"),
    Flag("--output-len", DATA.output_len, "TOKENS", integer(1),
         "of the answers to prompts from a file (default: as the file says)", shows_default=False),
)  # fmt: skip

REPORT_FLAGS: Final = (
    Flag("--compare", REPORT.compare, "URL2", text,
         "give a second server the same load in turn, and tell the ratios of paired rounds",
         shows_default=False),
    Flag("--rounds", LOAD.rounds, "N", integer(1), "how often each server has its turn then"),
    Flag("--percentile-metrics", LOAD.percentile_metrics, "NAMES", _listed(name_of(*LATENCIES)),
         "latencies to tell, separated by commas", _show_list),
    Flag("--metric-percentiles", LOAD.metric_percentiles, "PERCENT", _listed(_percentile),
         "which percentiles of them, separated by commas", _show_list),
    Flag("--goodput", LOAD.goodput, "LIMITS", _goodput,
         "count requests a second that are within limits in milliseconds, such as "
         "ttft:500,tpot:50,e2el:10000", shows_default=False),
    Flag("--json", REPORT.json, "", None, "print JSON in place of the text"),
    Flag("--save-result", REPORT.save_result, "", None,
         "keep that JSON, in a file named after the time"),
    Flag("--result-filename", REPORT.result_filename, "FILE", path, "keep it in this file",
         shows_default=False),
    Flag("--save-detailed", REPORT.save_detailed, "", None,
         "keep it with the figures of every request"),
    Flag("--html", REPORT.html, "FILE", path,
         "write a page with plots, which needs no network to be read; needs the extra plots",
         shows_default=False),
    Flag("--svg", REPORT.svg, "FILE", path, "write the plots alone", shows_default=False),
    Flag("--disable-tqdm", REPORT.disable_tqdm, "", None, "show no progress"),
)  # fmt: skip

BENCH_GROUPS: Final[Mapping[str, tuple[Flag, ...]]] = {
    "load": LOAD_FLAGS,
    "data sets": DATA_FLAGS,
    "report": REPORT_FLAGS,
}


def add_bench(add_parser: Callable[..., argparse.ArgumentParser], name: str) -> None:
    parser = add_parser(
        name,
        usage="%(prog)s [FLAG ...] URL",
        help="put load on a server and tell its throughput and latencies",
        description="Puts load on any OpenAI-compatible server and prints what vllm bench serve "
        "prints, under the same names. The exit code is 1 where a request has failed. Ctrl-C ends "
        "it early, with what there is.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "url",
        metavar="URL",
        type=text,
        help="base URL of the API, such as http://127.0.0.1:8000 (the same as its /v1)",
    )
    for title, flags in BENCH_GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            flag.add_to(group)


def run_bench(arguments: argparse.Namespace, settings: Settings) -> int:
    """Runs the load test, and returns the exit code."""
    flags = chain.from_iterable(BENCH_GROUPS.values())
    given = client_settings(flags, arguments, LOAD.api_key, os.environ)
    from fastovms.load_test.load_command import bench

    return bench(
        arguments.url,
        given.section(LoadConfig),
        given.section(DataConfig),
        given.section(ReportConfig),
    )
