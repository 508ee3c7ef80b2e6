"""`neighbours`: measures the effect of another service's busy processes on the server.

wrk sends requests alone, and in turn beside one busy process for each core. The server and wrk then
share half of the machine, so that latencies are expected to double. Time that the threads of a step
lose by waiting for each other increases the processor time of an answer, which should not change.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from bench.common.report import median
from bench.endurance.canary import Sightings, canary
from bench.endurance.load.wrk_load import WrkOutcome, find_wrk, wrk_load
from bench.endurance.server import MODEL, ServerUnderTest, server_under_test
from bench.figures.command import Command
from bench.figures.figure import Figure

WARM_UP: Final = 2.0
_BUSY: Final = """
import os
for _ in range({others}):
    if not os.fork():
        break
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(10**6):
        pass
"""


@dataclass(slots=True)
class Measured:
    """The measurements of one kind of rounds: alone, or beside busy processes.

    Attributes:
        cpu: the processor time of the server for each answer in milliseconds, by round.
        sightings: the measurements of a client that streams at the same time, by round.
    """

    outcomes: list[WrkOutcome] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    sightings: list[Sightings] = field(default_factory=list)


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Keeps the given number of cores busy. The processes form one session, so that the kernel's
    scheduler treats them as another service."""
    if not count:
        yield
        return
    command = [sys.executable, "-c", _BUSY.format(others=count - 1)]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _measure(server: ServerUnderTest, options: argparse.Namespace, measured: Measured) -> None:
    load = wrk_load(
        server.url, MODEL, connections=options.connections, max_tokens=options.max_tokens
    )
    with canary(server.url, MODEL) as sightings, load as outcome:
        before, start = server.cpu_seconds(), time.monotonic()
        time.sleep(options.seconds)
        seconds, cpu = time.monotonic() - start, server.cpu_seconds() - before
    if outcome.num_refused or outcome.num_lost or not outcome.num_answers:
        raise SystemExit(f"wrk did not get clean answers:\n{outcome.output}")
    measured.outcomes.append(outcome)
    measured.rates.append(outcome.num_answers / seconds)
    measured.cpu.append(1000 * cpu / outcome.num_answers)
    measured.sightings.append(sightings)


def run(options: argparse.Namespace) -> Sequence[Figure]:
    if find_wrk() is None:
        print("wrk is missing (apt-get install wrk): nothing can be measured")
        return []
    flags = [] if options.model is None else [options.model, "--model-name", MODEL]
    if options.threads is not None:
        flags += ["--plugin-config", json.dumps({"INFERENCE_NUM_THREADS": options.threads})]
    alone, beside = Measured(), Measured()
    with server_under_test(*flags) as server:
        with wrk_load(server.url, MODEL, max_tokens=options.max_tokens):
            time.sleep(WARM_UP)
        for _ in range(options.runs):
            _measure(server, options, alone)
            with busy_neighbours(options.busy):
                _measure(server, options, beside)
    figures = [Figure("busy neighbours", options.busy), Figure("rounds", options.runs)]
    for name, measured in (("alone", alone), ("beside them", beside)):
        outcomes = measured.outcomes
        figures += [
            Figure(f"answers a second, {name}", median(measured.rates)),
            Figure(f"p50, {name}", median([outcome.p50 for outcome in outcomes]), "ms"),
            Figure(f"p99, {name}", median([outcome.p99 for outcome in outcomes]), "ms"),
            Figure(f"longest, {name}", max(outcome.longest for outcome in outcomes), "ms"),
            Figure(f"processor time of an answer, {name}", median(measured.cpu), "ms"),
            Figure(
                f"longest gap in a stream, {name}",
                1000 * max(sightings.longest_gap for sightings in measured.sightings),
                "ms",
            ),
        ]
    p99s = [
        theirs.p99 / own.p99 for theirs, own in zip(beside.outcomes, alone.outcomes, strict=True)
    ]
    cpus = [theirs / own for theirs, own in zip(beside.cpu, alone.cpu, strict=True)]
    return [
        *figures,
        Figure("p99, beside them over alone, median of pairs", median(p99s), at_most=3),
        Figure("processor time, beside them over alone, median of pairs", median(cpus), at_most=2),
    ]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="directory of a model (default: the built-in one)")
    parser.add_argument("--threads", type=int, help="of the model (default: one a core)")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--busy", type=int, default=os.cpu_count(), help="processes beside it")
    parser.add_argument("--seconds", type=float, default=10, help="of one measurement")
    parser.add_argument("--runs", type=int, default=5, help="alone and beside them, in turn")


COMMAND = Command(
    help="runs busy processes beside the server, and says how much longer its answers take",
    run=run,
    add_arguments=_add_arguments,
    short=None,
)
