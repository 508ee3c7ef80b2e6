"""`database`: the database is stopped for half a minute, and killed, under load, again and again.
What was acknowledged stays, answers go on, and the replicas live on without growing."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.endurance.json_client import LOST, Body, JsonClient
from bench.endurance.load.openai_load import openai_load
from bench.endurance.server import MODEL
from bench.figures.command import Command
from bench.figures.figure import Figure
from bench.fleet.fleet import NUM_REPLICAS, Fleet, running_fleet
from bench.fleet.state_load import StateLoad

_OPERATIONS: Final = 20
"""Acknowledged between two outages, at least."""
_NUM_OLD: Final = 20
_PATIENCE: Final = 60.0
_MAX_GROWTH: Final = 10.0
"""MiB, of one replica from the first outage to the last."""


@dataclass(slots=True)
class Outages:
    """What requests saw that asked for a response to be stored while the database was gone.

    Attributes:
        num_unstored: answers that say that they are not stored.
        num_refused: with a 503.
        others: answers that are neither, and lost connections.
        longest: seconds for an answer.
        healed: seconds after the database's return until one was stored again.
    """

    num_unstored: int = 0
    num_refused: int = 0
    others: list[str] = field(default_factory=list)
    longest: float = 0.0
    healed: list[float] = field(default_factory=list)

    def ask(self, client: JsonClient) -> bool:
        """Returns whether the answer was stored."""
        body: Body = {"model": MODEL, "input": "Hello", "max_output_tokens": 4}
        start = time.monotonic()
        try:
            status, answer = client.ask("POST", "/v1/responses", body)
        except LOST as error:
            client.close()
            self.others.append(repr(error))
            return False
        self.longest = max(self.longest, time.monotonic() - start)
        if status == 200:
            self.num_unstored += not answer["store"]
            return bool(answer["store"])
        if status == 503:
            self.num_refused += 1
        else:
            self.others.append(f"{status} {answer}")
        return False


def measure(fleet: Fleet, options: argparse.Namespace) -> Sequence[Figure]:
    load, outages = StateLoad(fleet.url, options.seed), Outages()
    memory: list[list[float]] = []
    with openai_load(fleet.url, MODEL, options.seed) as openai:
        for end, seconds in ((fleet.postgres.stop, options.seconds), (fleet.postgres.kill, 0.0)):
            for _ in range(options.times):
                _outage(fleet, end, seconds, load, outages)
                memory.append([replica.resident_memory() for replica in fleet.replicas])
        load.check()
    load.close()
    num_ended = sum(not replica.is_alive for replica in fleet.replicas)
    growth = max(last - first for first, last in zip(memory[0], memory[-1], strict=True))
    print(*openai.failures[:5], *outages.others[:5], sep="\n", file=sys.stderr)
    return [
        Figure("outages", len(memory)),
        *load.figures(),
        Figure("background responses that did not end well", load.num_interrupted, at_most=0),
        Figure("answers meanwhile, with store false", outages.num_unstored),
        Figure("refused meanwhile, with 503", outages.num_refused),
        Figure("neither", len(outages.others), at_most=0),
        Figure("longest of these answers", outages.longest, "s", at_most=5),
        Figure("until one was stored again, longest", max(outages.healed), "s", at_most=5),
        Figure("completions of openai clients", openai.num_answers, at_least=1),
        Figure("of these failed", len(openai.failures), at_most=0),
        Figure("replicas that have ended", num_ended, at_most=0),
        Figure("memory of a replica after the first outage", max(memory[0]), "MiB"),
        Figure(
            "growth of a replica up to the last, at most",
            growth,
            "MiB",
            at_most=None if options.short else _MAX_GROWTH,
        ),
    ]


def _outage(
    fleet: Fleet, end: Callable[[], None], seconds: float, load: StateLoad, outages: Outages
) -> None:
    client = JsonClient(fleet.url)
    with load.running():
        load.wait_for(_OPERATIONS)
        end()
        back = time.monotonic() + seconds
        while time.monotonic() < back:
            outages.ask(client)
            time.sleep(0.2)
        fleet.postgres.start()
        returned = time.monotonic()
        while not outages.ask(client):
            if time.monotonic() > returned + _PATIENCE:
                raise SystemExit("nothing is stored though the database is back")
            time.sleep(0.05)
        outages.healed.append(time.monotonic() - returned)
    client.close()
    load.check(num_old=_NUM_OLD)


def run(options: argparse.Namespace) -> Sequence[Figure]:
    with running_fleet(options.replicas) as fleet:
        return measure(fleet, options)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=int, default=NUM_REPLICAS)
    parser.add_argument("--times", type=int, default=5, help="that it is stopped, and killed")
    parser.add_argument("--seconds", type=float, default=30, help="for which it is stopped")


COMMAND = Command(
    help="stops and kills the database under load; nothing acknowledged may be lost",
    run=run,
    add_arguments=_add_arguments,
    short={"replicas": 2, "times": 1, "seconds": 3},
)
