"""`affinity`: how much of the prompts of conversations is found in the prefix caches of several
replicas, against one replica that has them all, and how evenly the replicas are busy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import cycle
from typing import Final

import uvloop

from bench.endurance.server import ServerUnderTest
from bench.figures.command import Command
from bench.figures.figure import Figure
from bench.fleet.conversations import NextClient, converse
from bench.fleet.fleet import NUM_REPLICAS, Fleet, running_fleet
from fastovms.parts.client.http_client import HttpClient, Target

_CACHE: Final = ("--cache-size", "0.8")
"""GB: all conversations fit into the cache of one replica."""
_KINDS: Final = {"messages resent": True, "previous_response_id": False}
_LEAST_SHARE: Final = 0.9
_MOST_LOAD: Final = 1.5


class _Counts:
    """What each replica has counted since this was made."""

    def __init__(self, replicas: Sequence[ServerUnderTest]) -> None:
        self._replicas = replicas
        self._before = [replica.metrics() for replica in replicas]

    def of(self, name: str) -> list[float]:
        """Returns what each has counted of a metric."""
        return [
            replica.metrics()[name] - before.get(name, 0.0)
            for replica, before in zip(self._replicas, self._before, strict=True)
        ]

    @property
    def share_found(self) -> float:
        found = sum(self.of("prefix_cache_hits_total"))
        return found / sum(self.of("prefix_cache_queries_total"))


def measure(fleet: Fleet, options: argparse.Namespace) -> Sequence[Figure]:
    figures = [Figure("conversations", options.conversations), Figure("turns each", options.turns)]
    figures.append(Figure("turns at the same time, at most", options.at_once))
    ways = {
        "one replica": [fleet.replicas[0].url],
        "Envoy": [fleet.url],
        "in turn": [replica.url for replica in fleet.replicas],
    }
    for kind, resends in _KINDS.items():
        shares: dict[str, float] = {}
        for way, urls in ways.items():
            counts = _Counts(fleet.replicas)
            seed = f"{options.seed} {kind} {way}"  # other texts: nothing is in a cache yet
            uvloop.run(_hold(urls, options, seed, resends=resends))
            shares[way] = counts.share_found
            figures.append(Figure(f"{kind}: share found in the cache, {way}", shares[way]))
            if way == "Envoy":
                requests = counts.of("request_success_total")
                load = max(requests) * len(requests) / sum(requests)
        figures += [
            Figure(
                f"{kind}: Envoy / one replica",
                shares["Envoy"] / shares["one replica"],
                at_least=_LEAST_SHARE,
            ),
            Figure(f"{kind}: in turn / one replica", shares["in turn"] / shares["one replica"]),
            Figure(f"{kind}: busiest replica / mean, Envoy", load, at_most=_MOST_LOAD),
        ]
    return figures


async def _hold(
    urls: Sequence[str], options: argparse.Namespace, seed: str, *, resends: bool
) -> None:
    clients = [HttpClient(Target.from_url(url)) for url in urls]
    next_client: NextClient = cycle(clients).__next__
    try:
        await converse(
            next_client,
            num_conversations=options.conversations,
            num_turns=options.turns,
            max_at_once=options.at_once,
            seed=seed,
            resends=resends,
        )
    finally:
        for client in clients:
            await client.close()


def run(options: argparse.Namespace) -> Sequence[Figure]:
    with running_fleet(options.replicas, *_CACHE) as fleet:
        return measure(fleet, options)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=int, default=NUM_REPLICAS)
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=200, help="turns that run at the same time")


COMMAND = Command(
    help="compares what replicas find in their prefix caches, behind Envoy, in turn, and as one",
    run=run,
    add_arguments=_add_arguments,
    short=None,
)
