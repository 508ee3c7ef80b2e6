"""Runs the commands of a package of measurements by their names."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from bench.common.report import machine
from bench.figures.command import Command
from bench.figures.figure import figures_table
from bench.figures.record import record

_SHORT_PATIENCE = 4
"""The factor of all time limits in the short form, which runs with the tests on busy machines.
Limits of counts do not change."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """`python -m PROGRAM COMMAND`.

    Attributes:
        program: the package.
        help: the text to print if no command is given.
        page: the page into which `--record` writes figures.
        modules: the module of each command, which defines its `Command` as `COMMAND`.
    """

    program: str
    help: str
    page: Path
    modules: Mapping[str, str]

    def command(self, name: str) -> Command:
        command: Command = import_module(self.modules[name]).COMMAND
        return command

    def run(self) -> None:
        """Runs the command of the process's arguments.

        Raises:
            SystemExit: with status 1, a figure exceeds its limit; with status 2, the arguments are
                wrong.
        """
        arguments = sys.argv[1:]
        if arguments == ["--short"]:
            self._run_all()
            return
        names, options = arguments[:1], arguments[1:]
        if not names or names[0] not in self.modules:
            if names and not names[0].startswith("-"):
                print(f"unknown command {names[0]}\n")
            print(f"{self.help}\nCommands:\n")
            for name in self.modules:
                print(f"    {name:10} {self.command(name).help}")
            raise SystemExit(2)
        print(machine())
        if not self._run(names[0], options):
            raise SystemExit("a figure is beyond its limit")

    def _run_all(self) -> None:
        """Runs the short form of every command that has one, each in its own process, one per
        processor at a time. Raises SystemExit if one fails."""
        names = [name for name in self.modules if self.command(name).short is not None]

        def run(name: str) -> bool:
            command = [sys.executable, "-m", self.program, name, "--short"]
            ended = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
            print(f"{ended.stdout}\n", flush=True)
            return ended.returncode == 0

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            all_hold = all(list(threads.map(run, names)))
        if not all_hold:
            raise SystemExit("a figure is beyond its limit")

    def options(self, name: str, arguments: list[str]) -> argparse.Namespace:
        """Returns the options of a command. Raises SystemExit if they are wrong."""
        command = self.command(name)
        parser = argparse.ArgumentParser(
            f"python -m {self.program} {name}", description=command.help, allow_abbrev=False
        )
        parser.add_argument("--seed", type=int, default=1, help="decides every random choice")
        parser.add_argument("--short", action="store_true", help="run for a few seconds only")
        parser.add_argument(
            "--record", action="store_true", help=f"write the figures into {self.page.name}"
        )
        command.add_arguments(parser)
        if "--short" in arguments:
            if command.short is None:
                parser.error("it has no short form")
            parser.set_defaults(**command.short)
        return parser.parse_args(arguments)

    def _run(self, name: str, arguments: list[str]) -> bool:
        """Runs one command and prints its figures. Returns whether all of them are within their
        limits."""
        options = self.options(name, arguments)
        line = " ".join([f"python -m {self.program}", name, *arguments]).replace(" --record", "")
        print(f"\n{line}", flush=True)
        start, load = time.monotonic(), os.getloadavg()[0]
        figures = self.command(name).run(options)
        if options.short:
            figures = [figure.with_patience(_SHORT_PATIENCE) for figure in figures]
        seconds = time.monotonic() - start
        print(f"{figures_table(figures)}\n{seconds:.0f} s, load {load:.1f} before", flush=True)
        if options.record:
            record(self.page, name, line=line, seconds=seconds, load=load, figures=figures)
        return all(figure.holds for figure in figures)
