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

from fastovms.cli.commands import wants_colour
from fastovms.cli.flag import Flag, integer, json_object, name_of, number, path, settings_of, text
from fastovms.config import ConfigField, Fields, Settings
from fastovms.load_test.config import (
    BACKENDS,
    DATA_SETS,
    LATENCIES,
    DataConfig,
    LoadConfig,
    ReportConfig,
)
from fastovms.terminal import TerminalConfig

if TYPE_CHECKING:
    from fastovms.state.transfer import Copied, OpenState, RowSource


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
         "what requests ask for (default: the first model that the server lists)",
         shows_default=False),
    Flag("--system", TERMINAL.system, "TEXT", text, "system message", shows_default=False),
    Flag("--api-key", TERMINAL.api_key, "KEY", text,
         "key that the server wants (default: the one in the environment's OPENAI_API_KEY)",
         shows_default=False),
    Flag("--insecure", TERMINAL.insecure, "", None, "accept any certificate"),
)  # fmt: skip


def add_chat(add_parser: Callable[..., argparse.ArgumentParser], name: str) -> None:
    parser = add_parser(
        name,
        usage="%(prog)s [FLAG ...] [URL | MODEL]",
        help="chat with a model in the terminal",
        description="Chats in the terminal with any OpenAI-compatible server, or with one that it "
        "starts and ends. What comes by a pipe is one message, whose answer is all that is "
        "written.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "place",
        metavar="URL | MODEL",
        nargs="?",
        type=text,
        help="base URL of a server's API, such as http://127.0.0.1:8000 (the same as its /v1), or "
        "a model to start a server on, as serve takes it (default: the built-in demo model)",
    )
    group = parser.add_argument_group("chat")
    for flag in CHAT_FLAGS:
        flag.add_to(group)


def run_chat(arguments: argparse.Namespace, settings: Settings) -> int:
    """Runs the chat, and returns the exit code."""
    given = client_settings(CHAT_FLAGS, arguments, TERMINAL.api_key, os.environ)
    from fastovms.terminal import chat

    return chat(
        arguments.place,
        given.section(TerminalConfig),
        in_colour=wants_colour(sys.stdout, os.environ),
    )


# Declares the flags of `fastovms bench`, and runs it.


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
    from fastovms.load_test.command import bench

    return bench(
        arguments.url,
        given.section(LoadConfig),
        given.section(DataConfig),
        given.section(ReportConfig),
    )


# Runs `fastovms state`, which checks, exports, imports and moves what servers keep: `check`,
# `export`, `import`, `migrate`.


_PLACE: Final = "directory of --state-dir, or URL of --state-url"
_FILE: Final = "a file of any server, whatever its database"

_ACTIONS: Final = {
    "check": (
        "find what is wrong with a state",
        "Reads everything, compares the checksums, and ends with 1 where anything is wrong.",
        {"place": _PLACE},
    ),
    "export": ("write a state into a file", "", {"place": _PLACE, "file": _FILE}),
    "import": (
        "add the state in a file to another",
        "All of it is added, or none. What is there already stays as it is.",
        {"file": _FILE, "place": _PLACE},
    ),
    "migrate": (
        "add a state to another, such as that of a directory to a database",
        "All of it is added, or none. What is there already stays as it is, and so does the first "
        "state.",
        {"place": f"from where: {_PLACE}", "to": f"where to: {_PLACE}"},
    ),
}
"""The actions of the command: summary, description and arguments."""

_READERS: Final = {"place": text, "to": text, "file": path}


def add_state(add_parser: Callable[..., argparse.ArgumentParser], name: str) -> None:
    """Adds the command to the parser."""
    parser = add_parser(
        name,
        help="check, export, import or move stored responses and conversations",
        description="Works on the state in a directory, which no server may use meanwhile, or in a "
        "PostgreSQL database, which servers may.",
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
    """Runs `fastovms state` and returns the exit code.

    Raises:
        ConfigurationError: a path is invalid, or a server uses the directory.
        StateFailed: a state cannot be read or written.
    """
    from fastovms.state.transfer import copy_rows, export, rows_in_file, rows_of

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
    from fastovms.state.transfer import open_place

    file: Path | None = arguments.password_file
    return stack.enter_context(open_place(place, file, os.environ, must_exist=must_exist))


def _check(state: OpenState) -> int:
    from tqdm import tqdm

    num_faults = 0
    for fault in _faults(state):
        num_faults += 1
        tqdm.write(fault)  # above what shows how many rows are done
    print(f"{num_faults} faults" if num_faults else "nothing is wrong", file=sys.stderr)
    return 1 if num_faults else 0


def _faults(state: OpenState) -> Iterator[str]:
    """Yields a line for each fault in a state."""
    from fastovms.state.transfer import damaged_rows, rows_of

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
    more = f", {left} were there already" if left else ""
    print(f"{added} responses and conversations were added{more}")
