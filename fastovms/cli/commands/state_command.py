"""Runs `fastovms state`, which checks, exports, imports and moves what servers keep: `check`,
`export`, `import`, `migrate`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastovms.cli.flags.flag_types import path, text
from fastovms.config.settings import Settings

if TYPE_CHECKING:
    from fastovms.state.transfer.copying import Copied
    from fastovms.state.transfer.place import OpenState
    from fastovms.state.transfer.row_copy import RowSource

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
"""What can be done: in short, more, and the arguments."""

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
    """Runs the command, and returns the exit code.

    Raises:
        ConfigurationError: a place or a file is none, or a server uses the directory.
        StateFailed: a state cannot be read or written.
    """
    from fastovms.state.transfer.copying import copy_rows, export, rows_in_file, rows_of

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
    from fastovms.state.transfer.place import open_place

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
    """Yields a line for each thing that is wrong."""
    from fastovms.state.transfer.copying import damaged_rows, rows_of

    yield from state.faults()
    with ExitStack() as stack:
        source = stack.enter_context(rows_of(state))
        yield from damaged_rows(source, _counter(stack, source))


def _counter(stack: ExitStack, source: RowSource) -> Callable[[int], object]:
    """Returns what shows, on a terminal, how many rows are done."""
    from tqdm import tqdm

    bar = stack.enter_context(tqdm(total=source.num_rows(), unit=" rows", disable=None))
    return lambda number: bar.update(number)


def _tell(copied: Copied) -> None:
    added, left = copied
    more = f", {left} were there already" if left else ""
    print(f"{added} responses and conversations were added{more}")
