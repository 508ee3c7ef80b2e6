"""Commands that work with a running server or its state: bench, chat, state."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastovms.app.catalog import ModelFinder
from fastovms.cli.commands import wants_colour
from fastovms.cli.flag import Flag, flags_of, groups_of, settings_of
from fastovms.parts.client.terminal import TerminalConfig
from fastovms.parts.load_test.config import (
    DataConfig,
    LoadConfig,
    ReportConfig,
)
from fastovms.server_config import ConfigField, Fields, RepositoryConfig, Settings
from fastovms.setting import (
    path,
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

CHAT_FLAGS: Final = flags_of(TerminalConfig)


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


LOAD: Final = Fields(LoadConfig)

BENCH_GROUPS: Final = groups_of(
    ("load", "data sets", "report"), (LoadConfig, DataConfig, ReportConfig)
)


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
