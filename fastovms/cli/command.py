"""Helpers of all commands: the argument parser, signal handling, colours."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TextIO

USAGE_ERROR: Final = 2

Run = Callable[[argparse.Namespace], int | None]
"""A function that runs a command, given its arguments, and returns the exit code; None = 0."""


class Stopped(SystemExit):
    """Raised when a signal arrives before the server has started."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number  # the convention of shells
        super().__init__(self.exit_code)


def with_dashes(line: Sequence[str]) -> list[str]:
    """Returns a command line in which flags have dashes instead of underscores."""
    return [
        name.replace("_", "-") + separator + value if name.startswith("--") else argument
        for argument in line
        for name, separator, value in [argument.partition("=")]
    ]


class CommandParser(argparse.ArgumentParser):
    """An argument parser that prints errors in one line, without the usage, and suggests similar
    flags.

    Attributes:
        normalize: rewrites a command line before it is parsed.
        shows_all: whether the help shows all flags, or only the most used ones.
    """

    normalize: Callable[[Sequence[str]], list[str]] = staticmethod(with_dashes)
    shows_all: bool = True

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        arguments, unknown = super().parse_known_args(args, namespace)
        if unknown:
            from fastovms.cli.foreign_flags import explain_unknown

            self.error(explain_unknown(unknown, self._option_string_actions))
        return arguments, unknown

    def error(self, message: str) -> NoReturn:
        help_flag = "--help-all" if "--help-all" in self._option_string_actions else "--help"
        self.exit(USAGE_ERROR, f"{self.prog}: {message} (see {self.prog} {help_flag})\n")


def wants_colour(output: TextIO, environ: Mapping[str, str]) -> bool:
    """Returns whether to print in colours: on a terminal that supports them, unless NO_COLOR
    (https://no-color.org) is set."""
    return output.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
