"""Runs worlds in several processes, each of which runs a range of the seeds."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_LEAST_SEEDS: Final = 25
"""The least number of seeds for which another process is started: a start takes some seconds."""

_MOST_SEEDS: Final = 500
"""The number of seeds after which a process is replaced by a new one, at the latest."""

_INTERRUPTED: Final = 130
"""The exit status of a process that was interrupted twice."""


class Totals(NamedTuple):
    """The totals of some worlds."""

    num_worlds: int = 0
    num_requests: int = 0
    num_switches: int = 0
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    num_failed: int = 0

    def __add__(self, other: tuple[float, ...]) -> Totals:  # type: ignore[override]
        return Totals(*(a + b for a, b in zip(self, other, strict=True)))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return (
            f"{self.num_worlds} worlds, {self.num_requests} requests, {self.num_switches} "
            f"hand-overs, {self.virtual_seconds:.0f} virtual seconds in {self.cpu_seconds:.1f} s "
            f"of CPU: {self.num_failed} failed"
        )

    @classmethod
    def parse(cls, line: str) -> Totals:
        """Returns the totals of which `line` is the text."""
        worlds, requests, switches, virtual, cpu, failed = re.findall(r"[\d.]+", line)
        return cls(
            int(worlds), int(requests), int(switches), float(virtual), float(cpu), int(failed)
        )


def num_jobs(jobs: int, seeds: int) -> int:
    """Returns how many processes run a number of seeds; 1 = this process does."""
    return max(1, min(jobs, seeds // _LEAST_SEEDS))


@dataclass
class _Children:
    """The processes that run worlds.

    Attributes:
        is_over: whether no further process is started.
    """

    options: list[str]
    running: set[subprocess.Popen[str]] = field(default_factory=set)
    changing: threading.Lock = field(default_factory=threading.Lock)
    is_over: bool = False

    def run(self, first: int, seeds: int) -> tuple[str, int]:
        """Runs a range of seeds. Returns the output and the exit status. A process that crashes in
        native code is run once more: a crash that does not repeat depends on more than the seeds,
        such as memory that the simulated disk has freed too early."""
        output, status = self._run(first, seeds)
        if status < 0 and not self.is_over:
            print(f"seeds from {first} crashed with {status}, and run again: {output[-2000:]}")
            output, status = self._run(first, seeds)
        return output, status

    def _run(self, first: int, seeds: int) -> tuple[str, int]:
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.simulation"]
        command += ["--jobs", "1", *self.options]
        command += ["--first", str(first), "--seeds", str(seeds)]
        with self.changing:
            if self.is_over:
                return str(Totals()), 0
            child = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # this process passes interrupts on
            )
            self.running.add(child)
        output, _ = child.communicate()
        with self.changing:
            self.running.remove(child)
        return output.strip(), child.returncode

    def interrupt(self) -> None:
        """Ends each process after its current world, and starts no further processes."""
        with self.changing:
            self.is_over = True
            for child in self.running:
                child.send_signal(signal.SIGINT)


def run_several(arguments: argparse.Namespace) -> Totals:
    """Runs the worlds in several processes until an interrupt or enough failures, and prints the
    failures.

    Raises:
        RuntimeError: a process has ended without totals.
    """
    jobs = num_jobs(arguments.jobs, arguments.seeds)
    size = min(_MOST_SEEDS, -(-arguments.seeds // jobs))
    end = arguments.first + arguments.seeds
    children = _Children(_options_of(arguments))
    totals = Totals()
    with ThreadPoolExecutor(jobs) as executor:
        left: set[Future[tuple[str, int]]] = {
            executor.submit(children.run, first, min(size, end - first))
            for first in range(arguments.first, end, size)
        }
        while left:
            try:
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for future in done:
                    totals += _totals_of(*future.result())
                _show(totals, arguments.seeds)
                if totals.num_failed >= arguments.failures:
                    children.interrupt()
            except BaseException as error:
                children.interrupt()
                if not isinstance(error, KeyboardInterrupt):
                    raise
    return totals


def _options_of(arguments: argparse.Namespace) -> list[str]:
    """Returns the options that all processes have."""
    options = []
    for name, value in vars(arguments).items():
        if name in ("seeds", "first", "jobs") or value in (None, False, ""):
            continue
        options.append(f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}"))
    return options


def _totals_of(output: str, status: int) -> Totals:
    """Prints the output of a process except its totals, which are returned."""
    if status == _INTERRUPTED:
        return Totals()
    told, _, last = output.rpartition("\n")
    if status not in (0, 1) or "worlds" not in last:
        raise RuntimeError(f"a process has ended with {status}: {output[-2000:]}")
    if told:
        print(told, flush=True)
    return Totals.parse(last)


def _show(totals: Totals, seeds: int) -> None:
    """Prints the progress in one line."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"of {seeds} seeds so far {totals}", end=end, file=sys.stderr, flush=True)
