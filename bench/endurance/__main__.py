"""Runs endurance tests against real server processes.

    python -m bench.endurance bytes                # one of them, at full length
    python -m bench.endurance bytes --short        # for a few seconds
    python -m bench.endurance --short              # all of them in turn, for a few seconds each
    python -m bench.endurance soak --record        # and write the figures into docs/reliability.md

It exits with 1 if a figure is beyond its limit.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module

from bench.endurance.command import Command
from bench.endurance.figures import figures_table
from bench.endurance.record import PAGE, record
from bench.report import machine

COMMANDS: dict[str, str] = {
    "bytes": "bench.endurance.http_attack.mutated_bytes",
    "bodies": "bench.endurance.body_attack.mutated_bodies",
    "schemas": "bench.endurance.body_attack.schemas",
    "stalls": "bench.endurance.body_attack.stalls",
    "storm": "bench.endurance.http_attack.storm",
    "crash": "bench.endurance.state_faults.crash",
    "disk": "bench.endurance.state_faults.disk",
    "engine": "bench.endurance.engine_faults",
    "neighbours": "bench.endurance.load.neighbours",
    "restart": "bench.endurance.load.restart",
    "soak": "bench.endurance.load.soak",
}
"""The module of each command, which has its `Command` as `COMMAND`."""

_SHORT_PATIENCE = 4
"""How many times as long anything may take in the short form. That runs with the tests, on machines
that are busy with other things, too; what must never happen must not happen there either."""


def main() -> None:
    arguments = sys.argv[1:]
    if arguments == ["--short"]:
        names = [name for name in COMMANDS if _command(name).short is not None]
        options = ["--short"]
    else:
        names, options = arguments[:1], arguments[1:]
    if not names or names[0] not in COMMANDS:
        if names and not names[0].startswith("-"):
            print(f"unknown command {names[0]}\n")
        print(f"{__doc__}\nCommands:\n")
        for name in COMMANDS:
            print(f"    {name:9} {_command(name).help}")
        raise SystemExit(2)
    print(machine())
    all_hold = True
    for name in names:
        all_hold = _run(name, options) and all_hold
    if not all_hold:
        raise SystemExit("a figure is beyond its limit")


def _run(name: str, arguments: list[str]) -> bool:
    """Runs one command and prints its figures. Returns whether all of them hold."""
    command = _command(name)
    parser = argparse.ArgumentParser(
        f"python -m bench.endurance {name}", description=command.help, allow_abbrev=False
    )
    parser.add_argument("--seed", type=int, default=1, help="decides every random choice")
    parser.add_argument("--short", action="store_true", help="run for a few seconds only")
    parser.add_argument("--record", action="store_true", help=f"write the figures into {PAGE.name}")
    command.add_arguments(parser)
    if "--short" in arguments:
        if command.short is None:
            parser.error("it has no short form")
        parser.set_defaults(**command.short)
    options = parser.parse_args(arguments)
    line = " ".join(["python -m bench.endurance", name, *arguments]).replace(" --record", "")
    print(f"\n{line}", flush=True)
    start = time.monotonic()
    figures = command.run(options)
    if options.short:
        figures = [figure.with_patience(_SHORT_PATIENCE) for figure in figures]
    seconds = time.monotonic() - start
    print(f"{figures_table(figures)}\n{seconds:.0f} s", flush=True)
    if options.record:
        record(PAGE, name, line=line, seconds=seconds, figures=figures)
    return all(figure.holds for figure in figures)


def _command(name: str) -> Command:
    command: Command = import_module(COMMANDS[name]).COMMAND
    return command


if __name__ == "__main__":
    main()
