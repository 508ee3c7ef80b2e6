"""Commands that work with a running server or its state: bench, chat, state."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastovms.app.catalog import ModelFinder
from fastovms.cli.commands import wants_colour
from fastovms.cli.flag import Flag, settings_of
from fastovms.config import ConfigField, Fields, RepositoryConfig, Settings
from fastovms.parts.client.terminal import TerminalConfig
from fastovms.parts.load_test.config import (
    BACKENDS,
    DATA_SETS,
    LATENCIES,
    DataConfig,
    LoadConfig,
    ReportConfig,
)
from fastovms.setting import (
    integer,
    json_object,
    name_of,
    number,
    path,
    show_duration,
    some_duration,
    text,
)

if TYPE_CHECKING:
    from fastovms.parts.state_transfer import Copied, OpenState, RowSource


def client_settings(
    flags: Iterable[Flag],
    arguments: argparse.Namespace,
    key: ConfigField,
    environ: Mapping[str, str],
) -> Settings:
    """Returns the settings from the flags, and the environment's OPENAI_API_KEY if they set no
    key."""
    given = settings_of(flags, arguments)
    value = environ.get("OPENAI_API_KEY", "").strip()
    if value and key not in given.given:
        given |= Settings({key: value})
    return given


TERMINAL: Final = Fields(TerminalConfig)

CHAT_FLAGS: Final = (
    Flag("--model", TERMINAL.model, "NAME", text,
         "name of the model in requests (default: the server's first model)",
         shows_default=False),
    Flag("--system", TERMINAL.system, "TEXT", text, "system message of the chat",
         shows_default=False),
    Flag("--api-key", TERMINAL.api_key, "KEY", text,
         "API key of the server (default: the environment variable OPENAI_API_KEY)",
         shows_default=False),
    Flag("--insecure", TERMINAL.insecure, "", None, "accept any TLS certificate of the server"),
)  # fmt: skip


def add_chat(add_parser: Callable[..., argparse.ArgumentParser], name: str) -> None:
    parser = add_parser(
        name,
        usage="%(prog)s [FLAG ...] [URL | MODEL]",
        help="chat with a model in the terminal",
        description="Chats in the terminal with any OpenAI-compatible server, or with one that it "
        "starts and ends. Piped input is one message; only its answer is written.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "place",
        metavar="URL | MODEL",
        nargs="?",
        type=text,
        help="base URL of a server's API, such as http://127.0.0.1:8000 (/v1 may be left out), or "
        "a model to start a server with, as for serve (default: the built-in demo model)",
    )
    group = parser.add_argument_group("chat")
    for flag in CHAT_FLAGS:
        flag.add_to(group)


def run_chat(arguments: argparse.Namespace, settings: Settings) -> int:
    """Runs the chat, and returns the exit code. A model is downloaded here, not by the server, so
    that its progress is shown."""
    given = client_settings(CHAT_FLAGS, arguments, TERMINAL.api_key, os.environ)
    from fastovms.parts.client.terminal import chat

    place: str | None = arguments.place
    if place is not None and "://" not in place:
        ModelFinder.of(settings.section(RepositoryConfig), os.environ).locate(place)
    return chat(
        place,
        given.section(TerminalConfig),
        in_colour=wants_colour(sys.stdout, os.environ),
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
         "API that requests use: openai = /completions, openai-chat = /chat/completions"),
    Flag("--endpoint", LOAD.endpoint, "PATH", text,
         "path of requests on the server (default: the path of URL and of --backend)",
         shows_default=False),
    Flag("--model", LOAD.model, "NAME", text,
         "name of the model in requests (default: the server's first model)",
         shows_default=False),
    Flag("--api-key", LOAD.api_key, "KEY", text,
         "API key of the server (default: the environment variable OPENAI_API_KEY)",
         shows_default=False),
    Flag("--header", LOAD.headers, "NAME=VALUE", _header,
         "further HTTP header of every request; may be given several times", shows_default=False,
         repeats=True),
    Flag("--insecure", LOAD.insecure, "", None, "accept any TLS certificate of the server"),
    Flag("--num-prompts", LOAD.num_prompts, "N", integer(1), "number of requests in one round"),
    Flag("--num-warmups", LOAD.num_warmups, "N", integer(0),
         "number of requests before the measurement, which are not counted"),
    Flag("--request-rate", LOAD.request_rate, "RATE", _rate,
         "number of requests a second, at random intervals; inf = all at once"),
    Flag("--burstiness", LOAD.burstiness, "SHAPE", number("shapes", positive=True),
         "shape of the gamma distribution of the intervals of requests: 1 = a Poisson process, "
         "less = bursts, more = even intervals"),
    Flag("--max-concurrency", LOAD.max_concurrency, "N", integer(1),
         "number of requests that run at the same time; more wait (default: no limit)",
         shows_default=False),
    Flag("--request-timeout", LOAD.request_timeout, "TIME", some_duration,
         "time after which a request counts as failed", show_duration),
    Flag("--seed", LOAD.seed, "N", integer(0), "seed of the random prompts and intervals"),
    Flag("--ignore-eos", LOAD.ignore_eos, "", None,
         "generate every answer to its full length; this server and vLLM support it"),
    Flag("--temperature", LOAD.temperature, "T", number("degrees"),
         "sampling temperature of every request (default: the server's)", shows_default=False),
    Flag("--extra-body", LOAD.extra_body, "JSON", json_object,
         "further fields of every request body", shows_default=False),
)  # fmt: skip

DATA_FLAGS: Final = (
    Flag("--dataset-name", DATA.dataset_name, "NAME", name_of(*DATA_SETS),
         f"source of the prompts: {', '.join(DATA_SETS)}"),
    Flag("--dataset-path", DATA.dataset_path, "FILE", text,
         "file of the data set sharegpt (JSON) or custom (JSON lines with prompt and "
         "output_tokens)",
         shows_default=False),
    Flag("--random-input-len", DATA.random_input_len, "TOKENS", integer(1),
         "length of random prompts"),
    Flag("--random-output-len", DATA.random_output_len, "TOKENS", integer(1),
         "length of the answers to random prompts"),
    Flag("--random-range-ratio", DATA.random_range_ratio, "SHARE", _ratio,
         "share by which the lengths of random prompts and answers vary, up and down"),
    Flag("--prefix-repetition-prefix-len", DATA.prefix_repetition_prefix_len, "TOKENS", integer(1),
         "length of the prefixes that prompts of the data set prefix_repetition share"),
    Flag("--prefix-repetition-suffix-len", DATA.prefix_repetition_suffix_len, "TOKENS", integer(1),
         "length of the differing part of each prompt of the data set prefix_repetition"),
    Flag("--prefix-repetition-num-prefixes", DATA.prefix_repetition_num_prefixes, "N", integer(1),
         "number of prefixes of the data set prefix_repetition"),
    Flag("--prefix-repetition-output-len", DATA.prefix_repetition_output_len, "TOKENS", integer(1),
         "length of the answers of the data set prefix_repetition"),
    Flag("--output-len", DATA.output_len, "TOKENS", integer(1),
         "length of the answers to prompts from a file (default: as in the file)",
         shows_default=False),
)  # fmt: skip

REPORT_FLAGS: Final = (
    Flag("--compare", REPORT.compare, "URL2", text,
         "base URL of a second server, which gets the same load in turn; the ratios of paired "
         "rounds are printed",
         shows_default=False),
    Flag("--rounds", LOAD.rounds, "N", integer(1), "number of rounds per server with --compare"),
    Flag("--percentile-metrics", LOAD.percentile_metrics, "NAMES", _listed(name_of(*LATENCIES)),
         "latencies to report, separated by commas", _show_list),
    Flag("--metric-percentiles", LOAD.metric_percentiles, "PERCENT", _listed(_percentile),
         "percentiles of the latencies to report, separated by commas", _show_list),
    Flag("--goodput", LOAD.goodput, "LIMITS", _goodput,
         "report the requests a second that are within limits in milliseconds, such as "
         "ttft:500,tpot:50,e2el:10000", shows_default=False),
    Flag("--json", REPORT.json, "", None, "print the results as JSON instead of text"),
    Flag("--save-result", REPORT.save_result, "", None,
         "write the results as JSON to a file named after the time"),
    Flag("--result-filename", REPORT.result_filename, "FILE", path,
         "write the results as JSON to this file", shows_default=False),
    Flag("--save-detailed", REPORT.save_detailed, "", None,
         "write the results as JSON, with the figures of every request"),
    Flag("--html", REPORT.html, "FILE", path,
         "write an HTML page with plots, which needs no network to read; needs the extra plots",
         shows_default=False),
    Flag("--svg", REPORT.svg, "FILE", path, "write the plots to an SVG file", shows_default=False),
    Flag("--disable-tqdm", REPORT.disable_tqdm, "", None, "show no progress bar"),
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
        help="put load on a server and report its throughput and latencies",
        description="Puts load on any OpenAI-compatible server and prints what vllm bench serve "
        "prints, under the same names. The exit code is 1 if a request failed. Ctrl-C ends the run "
        "early and prints the results so far.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "url",
        metavar="URL",
        type=text,
        help="base URL of the API, such as http://127.0.0.1:8000 (/v1 may be left out)",
    )
    for title, flags in BENCH_GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            flag.add_to(group)


def run_bench(arguments: argparse.Namespace, settings: Settings) -> int:
    """Runs the load test, and returns the exit code."""
    flags = chain.from_iterable(BENCH_GROUPS.values())
    given = client_settings(flags, arguments, LOAD.api_key, os.environ)
    from fastovms.parts.load_test.command import bench

    return bench(
        arguments.url,
        given.section(LoadConfig),
        given.section(DataConfig),
        given.section(ReportConfig),
    )


_PLACE: Final = "state directory, as of --state-dir, or database URL, as of --state-url"
_FILE: Final = "file of exported rows, which does not depend on the kind of database"

_ACTIONS: Final = {
    "check": (
        "find faults in a stored state",
        "Reads every row and verifies the checksums. The exit code is 1 if there is a fault.",
        {"place": _PLACE},
    ),
    "export": ("write a stored state into a file", "", {"place": _PLACE, "file": _FILE}),
    "import": (
        "add the state in a file to a stored state",
        "Either all rows are added or none. Existing rows are not changed.",
        {"file": _FILE, "place": _PLACE},
    ),
    "migrate": (
        "copy a stored state into another, such as from a directory into a database",
        "Either all rows are added or none. Existing rows and the source are not changed.",
        {"place": f"source: {_PLACE}", "to": f"target: {_PLACE}"},
    ),
}
"""The actions of the command: summary, description and arguments."""

_READERS: Final = {"place": text, "to": text, "file": path}


def add_state(add_parser: Callable[..., argparse.ArgumentParser], name: str) -> None:
    """Adds the command to the parser."""
    parser = add_parser(
        name,
        help="check, export, import or move stored responses and conversations",
        description="Works on the state in a directory, which no server may use at that time, or "
        "in a PostgreSQL database, which servers may use.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    for action, (short, long, arguments) in _ACTIONS.items():
        subparser = actions.add_parser(
            action, help=short, description=long or f"{short.capitalize()}.", allow_abbrev=False
        )
        for argument, meaning in arguments.items():
            subparser.add_argument(
                argument, metavar=argument.upper(), type=_READERS[argument], help=meaning
            )
        subparser.add_argument(
            "--state-password-file",
            dest="password_file",
            metavar="FILE",
            type=path,
            help="file with the password for the URL",
        )


def run_state(arguments: argparse.Namespace, settings: Settings) -> int:
    """Runs `fastovms state` and returns the exit code. Raises ConfigurationError if a path is
    invalid, or a server uses the directory; StateFailed if a state cannot be read or written."""
    from fastovms.parts.state_transfer import copy_rows, export, rows_in_file, rows_of

    with ExitStack() as stack:
        if arguments.action == "check":
            return _check(_open(stack, arguments, arguments.place))
        if arguments.action == "import":
            source = stack.enter_context(rows_in_file(arguments.file))
        else:
            source = stack.enter_context(rows_of(_open(stack, arguments, arguments.place)))
        if arguments.action == "export":
            export(source, arguments.file, _counter(stack, source))
            print(f"{source.num_rows()} rows were written to {arguments.file}")
            return 0
        place = arguments.place if arguments.action == "import" else arguments.to
        target = _open(stack, arguments, place, must_exist=False)
        _tell(copy_rows(source, target, _counter(stack, source)))
    return 0


def _open(
    stack: ExitStack, arguments: argparse.Namespace, place: str, *, must_exist: bool = True
) -> OpenState:
    from fastovms.parts.state_transfer import open_place

    file: Path | None = arguments.password_file
    return stack.enter_context(open_place(place, file, os.environ, must_exist=must_exist))


def _check(state: OpenState) -> int:
    from tqdm import tqdm

    num_faults = 0
    for fault in _faults(state):
        num_faults += 1
        tqdm.write(fault)  # above what shows how many rows are done
    print(f"{num_faults} faults" if num_faults else "no faults found", file=sys.stderr)
    return 1 if num_faults else 0


def _faults(state: OpenState) -> Iterator[str]:
    """Yields a line for each fault in a state."""
    from fastovms.parts.state_transfer import damaged_rows, rows_of

    yield from state.faults()
    with ExitStack() as stack:
        source = stack.enter_context(rows_of(state))
        yield from damaged_rows(source, _counter(stack, source))


def _counter(stack: ExitStack, source: RowSource) -> Callable[[int], object]:
    """Returns a callback that shows the number of finished rows on a terminal."""
    from tqdm import tqdm

    bar = stack.enter_context(tqdm(total=source.num_rows(), unit=" rows", disable=None))
    return lambda number: bar.update(number)


def _tell(copied: Copied) -> None:
    added, left = copied
    more = f", {left} existed already" if left else ""
    print(f"{added} responses and conversations were added{more}")
