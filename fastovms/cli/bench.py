"""`fastovms bench`: load-tests a server and reports its throughput and latencies."""

from __future__ import annotations

import argparse
import os
from itertools import chain
from typing import Final

from fastovms.cli.command import CommandParser, Run
from fastovms.cli.flag import client_settings, groups_of
from fastovms.parts.load_test.config import DataConfig, LoadConfig, ReportConfig
from fastovms.server_config import Fields
from fastovms.setting import text

LOAD: Final = Fields(LoadConfig)

BENCH_GROUPS: Final = groups_of(
    ("load", "data sets", "report"), (LoadConfig, DataConfig, ReportConfig)
)


def bench(parser: CommandParser) -> Run:
    """Adds the arguments to the parser, and returns the function that runs the command."""
    parser.usage = "%(prog)s [FLAG ...] URL"
    parser.description = (
        "Puts load on any OpenAI-compatible server and prints what vllm bench serve prints, under "
        "the same names. The exit code is 1 if a request failed. Ctrl-C ends the run early and "
        "prints the results so far."
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
    return _run


def _run(arguments: argparse.Namespace) -> int:
    """Runs the load test, and returns the exit code."""
    flags = chain.from_iterable(BENCH_GROUPS.values())
    given = client_settings(flags, arguments, LOAD.api_key, os.environ)
    from fastovms.parts.load_test import command

    return command.bench(
        arguments.url,
        given.section(LoadConfig),
        given.section(DataConfig),
        given.section(ReportConfig),
    )
