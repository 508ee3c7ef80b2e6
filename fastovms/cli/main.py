"""The entry point of the command line: finds and imports the command, parses the line, runs it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, NoReturn

from fastovms import __version__
from fastovms.cli.command import USAGE_ERROR, CommandParser, Run, Stopped
from fastovms.errors import ConfigurationError, EngineFailed, RequestFailed, StateFailed
from fastovms.system.deferred import leave_out_converter
from fastovms.system.memory import share_heap

__all__ = ["main", "run"]


class Command(NamedTuple):
    """A command of this server.

    Attributes:
        entry: "module:function" in `fastovms.cli`. The function adds the command's arguments to a
            parser, and returns the function that runs the command.
        help: the purpose of the command, in one line.
    """

    entry: str
    help: str


SERVE: Final = "serve"

COMMANDS: Final[Mapping[str, Command]] = {
    SERVE: Command("serve:serve", "serve models over HTTP"),
    "pull": Command(
        "pull:pull", "download models of a hub, so that they can be served without a network"
    ),
    "tune": Command("tune:tune", "measure how a model runs fastest on this machine"),
    "run-batch": Command("run_batch:run_batch", "answer a file of requests without a server"),
    "bench": Command("bench:bench", "put load on a server and report its throughput and latencies"),
    "doctor": Command("doctor:doctor", "examine the machine, the installation and a model"),
    "chat": Command("chat:chat", "chat with a model in the terminal"),
    "state": Command(
        "state:state", "check, export, import or move stored responses and conversations"
    ),
    "cache": Command("cache:cache", "list or delete the prompts that are cached on disk"),
}

_COMMAND_LINES: Final = {
    "version": ("--version",),
    "list": (SERVE, "--list-models"),
    "ls": (SERVE, "--list-models"),
}
"""Commands of other servers that are flags here."""

_OF_THE_PROGRAM: Final = ("-h", "--help", "--version")
"""Flags that may come first instead of a command."""

_HELP_ALL: Final = ("--help-all", "--help_all", "--help=")

_NEAR: Final = 0.7
"""The similarity of two names, from 0 to 1, from which one is suggested for the other."""

_FAILURE: Final = 1
_OUTPUT_CLOSED: Final = 128 + signal.SIGPIPE
"""The exit code of shells for a program whose output pipe was closed."""


def with_command(line: Sequence[str]) -> list[str]:
    """Returns the command line, with `serve` added if it does not begin with a command or a program
    flag."""
    first = line[0] if line else ""
    if first == "help":
        return with_command([*line[1:2], "--help"])
    if list(line) == ["-v"]:
        return ["--version"]
    if first in _COMMAND_LINES:
        return [*_COMMAND_LINES[first], *line[1:]]
    return list(line) if first in COMMANDS or first in _OF_THE_PROGRAM else [SERVE, *line]


def check_first_word(word: str) -> None:
    """Raises ConfigurationError if the first word is neither a command nor a model."""
    is_name = not word.startswith("-") and "/" not in word and "=" not in word
    if not is_name or word in (*COMMANDS, *_COMMAND_LINES, "help") or Path(word).exists():
        return
    from fastovms.cli.foreign_tables import OTHER_COMMANDS

    if word in OTHER_COMMANDS:
        raise ConfigurationError(f"there is no command {word}: {OTHER_COMMANDS[word]}")
    near = get_close_matches(word.lower(), COMMANDS, 1, _NEAR)
    meant = f"did you mean {near[0]}?" if near else f"commands are {', '.join(COMMANDS)}"
    raise ConfigurationError(
        f"{word!r} is neither a command, a file nor a directory, and a model of a hub is "
        f"ORG/NAME: {meant}"
    )


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Returns the parsed arguments; their attribute `command` is the function that runs the
    command. Exits if the line is invalid or asks for help."""
    name, *line = with_command(argv)
    if name not in COMMANDS:
        program_parser().parse_args([name, *line])
    parser = CommandParser(prog=f"fastovms {name}", allow_abbrev=False)
    parser.shows_all = any(word.startswith(_HELP_ALL) for word in line)
    parser.set_defaults(command=define(name, parser))
    return parser.parse_args(parser.normalize(line))


def define(name: str, parser: CommandParser) -> Run:
    """Adds the arguments of a command to its parser, and returns the function that runs it."""
    module, _, function = COMMANDS[name].entry.partition(":")
    define = getattr(import_module(f"fastovms.cli.{module}"), function)
    run: Run = define(parser)
    return run


def program_parser() -> CommandParser:
    """Returns the parser of lines that begin with a program flag. It knows the commands' names, but
    not their arguments."""
    parser = CommandParser(
        prog="fastovms",
        description="OpenAI-compatible LLM server for OpenVINO models. Without a command, serve is "
        "assumed.",
        epilog="fastovms COMMAND --help shows the flags of a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"fastovms {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.help, allow_abbrev=False)
    return parser


def command_parser() -> CommandParser:
    """Returns the parser of all commands. Manual pages and completions are generated from it."""
    parser = program_parser()
    [commands] = [each.choices for each in parser._actions if isinstance(each.choices, dict)]
    for name, command in commands.items():
        define(name, command)
    return parser


def run() -> NoReturn:
    """Runs the process, and ends it with the command's exit code."""
    _open_standard_streams()
    share_heap()
    leave_out_converter()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    code = main()
    if any(thread is not threading.main_thread() for thread in threading.enumerate()):
        # A thread may still run native code, and an orderly exit of the interpreter would free
        # memory that this code uses. The interpreter would also wait for pool threads that are
        # blocked by a disk.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _open_standard_streams() -> None:
    """Opens missing standard streams, so that sockets do not get their descriptors: libuv would
    refuse such sockets."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor: this one
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped(number)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code: 2 for an error that the operator must correct, 1
    for a failure that a restart may solve."""
    try:
        line = sys.argv[1:] if argv is None else argv
        if line and not line[0].startswith("-") and line[0] not in COMMANDS:
            from fastovms.cli.extension import run_extension

            if (exit_code := run_extension(line)) is not None:
                return exit_code
            check_first_word(line[0])
        arguments = parse(line)
        code: int = arguments.command(arguments) or 0
        sys.stdout.flush()
        return code
    except Stopped as stopped:
        return stopped.exit_code
    except ConfigurationError as error:
        return _complain(error, USAGE_ERROR)
    except (EngineFailed, RequestFailed, StateFailed) as error:
        return _complain(error, _FAILURE)
    except BrokenPipeError:
        # The reader, such as head, has closed the pipe. Discard the rest, which the interpreter
        # would flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _OUTPUT_CLOSED


def _complain(error: Exception, code: int) -> int:
    print(f"fastovms: {' '.join(str(error).split())}", file=sys.stderr)
    return code
