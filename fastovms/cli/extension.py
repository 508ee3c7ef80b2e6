"""Runs commands that other packages define."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.cli.command import CommandParser
from fastovms.errors import ConfigurationError
from fastovms.extensions import COMMANDS, faults_named, load_extensions


def run_extension(line: Sequence[str]) -> int | None:
    """Runs the command named by the first word, and returns its exit code; None = no package has
    that command. Raises ConfigurationError if the package defines it wrongly or the exit code is
    invalid, and all errors of the command."""
    for extension in load_extensions(COMMANDS, line[0]):
        parser = CommandParser(prog=f"fastovms {line[0]}", allow_abbrev=False)
        with faults_named(extension.entry):
            command = extension.function(parser)
            if not callable(command):
                raise ConfigurationError(f"it must return a function, not {command!r}")
        code: object = command(parser.parse_args(line[1:]))
        with faults_named(extension.entry):
            if code is not None and not isinstance(code, int):
                raise ConfigurationError(f"it must return an exit code or None, not {code!r}")
        return code or 0
    return None
