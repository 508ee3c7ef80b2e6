"""`fastovms state`: checks, exports, imports or moves stored responses and conversations."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastovms.cli.command import CommandParser, Run
from fastovms.setting import path, text

if TYPE_CHECKING:
    from fastovms.parts.state_transfer import CopyCounts, OpenState, RowSource

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
"""The subcommands: summary, description and arguments."""

_READERS: Final = {"place": text, "to": text, "file": path}


def state(parser: CommandParser) -> Run:
    """Adds the arguments to the parser, and returns the function that runs the command."""
    parser.description = (
        "Works on the state in a directory, which no server may use at that time, or in a "
        "PostgreSQL database, which servers may use."
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
    return _run


def _run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand and returns the exit code. Raises ConfigurationError if a path is invalid
    or a server uses the directory, and StateFailed if a state cannot be read or written."""
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
        _print_copied(copy_rows(source, target, _counter(stack, source)))
    return 0


def _open(
    stack: ExitStack, arguments: argparse.Namespace, place: str, *, must_exist: bool = True
) -> OpenState:
    from fastovms.parts.state_transfer import open_state

    file: Path | None = arguments.password_file
    return stack.enter_context(open_state(place, file, os.environ, must_exist=must_exist))


def _check(state: OpenState) -> int:
    from tqdm import tqdm

    num_faults = 0
    for fault in _faults(state):
        num_faults += 1
        tqdm.write(fault)  # print above the progress bar
    print(f"{num_faults} faults" if num_faults else "no faults found", file=sys.stderr)
    return 1 if num_faults else 0


def _faults(state: OpenState) -> Iterator[str]:
    """Yields a line for each inconsistency in a state."""
    from fastovms.parts.state_transfer import corrupt_rows, rows_of

    yield from state.faults()
    with ExitStack() as stack:
        source = stack.enter_context(rows_of(state))
        yield from corrupt_rows(source, _counter(stack, source))


def _counter(stack: ExitStack, source: RowSource) -> Callable[[int], object]:
    """Returns a callback that shows the number of copied rows on a terminal."""
    from tqdm import tqdm

    bar = stack.enter_context(tqdm(total=source.num_rows(), unit=" rows", disable=None))
    return lambda number: bar.update(number)


def _print_copied(copied: CopyCounts) -> None:
    added, left = copied
    more = f", {left} existed already" if left else ""
    print(f"{added} responses and conversations were added{more}")
