"""`rolling`: every replica is restarted, one after the other, under load, again and again: no
request may fail."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Final

from bench.endurance.load.openai_load import openai_load
from bench.endurance.server import MODEL
from bench.figures.command import Command
from bench.figures.figure import Figure
from bench.fleet.fleet import NUM_REPLICAS, Fleet, running_fleet
from bench.fleet.state_load import StateLoad

_SHOWN: Final = 5
"""Failures that are printed."""


def measure(fleet: Fleet, options: argparse.Namespace) -> Sequence[Figure]:
    load = StateLoad(fleet.url, options.seed)
    stops: list[float] = []
    gaps: list[float] = []
    with openai_load(fleet.url, MODEL, options.seed) as openai, load.running():
        load.wait_for(1)
        for replica in islice(cycle(fleet.replicas), options.restarts):
            start = time.monotonic()
            if replica.stop() != 0:
                raise SystemExit(f"SIGTERM led to another exit code than 0\n{replica.tail}")
            stops.append(time.monotonic() - start)
            replica.start()
            fleet.wait_until_healthy()
            gaps.append(time.monotonic() - start)
        load.wait_for(1)
    load.check()
    load.close()
    for failure in [*openai.failures, *load.refusals][:_SHOWN]:
        print(failure, file=sys.stderr)
    return [
        Figure("restarts", len(stops)),
        Figure("from SIGTERM to the end of the process, longest", max(stops), "s"),
        Figure("from SIGTERM until it is asked again, longest", max(gaps), "s"),
        Figure("answers to openai clients, which do not retry", openai.num_answers, at_least=1),
        Figure("requests of theirs that failed", len(openai.failures), at_most=0),
        Figure("longest of their answers", openai.longest, "s"),
        *load.figures(),
        Figure("operations refused or lost", len(load.refusals), at_most=0),
        Figure(
            "background responses that did not come to their end", load.num_interrupted, at_most=0
        ),
    ]


def run(options: argparse.Namespace) -> Sequence[Figure]:
    with running_fleet(options.replicas) as fleet:
        return measure(fleet, options)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=int, default=NUM_REPLICAS, help="at least two")
    parser.add_argument("--restarts", type=int, default=5 * NUM_REPLICAS, help="in all")


COMMAND = Command(
    help="restarts all replicas in turn under load; no request may fail",
    run=run,
    add_arguments=_add_arguments,
    short={"replicas": 3, "restarts": 1},
)
