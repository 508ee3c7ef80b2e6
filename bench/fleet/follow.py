"""`follow`: a background response that one replica runs is followed on a second one from event 10
on, and cancelled through a third."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from bench.endurance.json_client import Body, JsonClient
from bench.endurance.server import MODEL
from bench.figures.command import Command
from bench.figures.figure import Figure
from bench.fleet.fleet import NUM_REPLICAS, Fleet, running_fleet

FIRST: Final = 10
"""Number of the first event that the follower asks for."""
_SECONDS: Final = 0.7
"""For which a response runs before it is cancelled."""
_MAX_TOKENS: Final = 1500


@dataclass(slots=True)
class Followed:
    """What one who follows a response sees.

    Attributes:
        arrivals: when each event came, by its number.
        last: type of the last event.
        ended: when the stream did.
    """

    arrivals: dict[int, float] = field(default_factory=dict)
    last: str = ""
    ended: float = 0.0

    def read(self, url: str, path: str) -> None:
        client = JsonClient(url)
        for line in client.send("GET", path):
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                self.arrivals[event["sequence_number"]] = time.monotonic()
                self.last = event["type"]
        self.ended = time.monotonic()
        client.close()


@dataclass(slots=True)
class FollowResults:
    num_followed: int = 0
    num_wrong_starts: int = 0
    num_gaps: int = 0
    num_differences: int = 0
    delays: list[float] = field(default_factory=list)
    cancels: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def add(self, owner: Followed, follower: Followed, start: float, cancelled: float) -> None:
        self.num_followed += 1
        numbers = list(follower.arrivals)
        self.num_wrong_starts += numbers[:1] != [FIRST]
        self.num_gaps += numbers != list(range(FIRST, FIRST + len(numbers)))
        self.num_differences += max(owner.arrivals) != max(follower.arrivals)
        common = owner.arrivals.keys() & follower.arrivals.keys()
        self.delays += [follower.arrivals[n] - owner.arrivals[n] for n in common]
        self.cancels.append(cancelled - start)
        self.ends.append(follower.ended - start)

    def figures(self) -> list[Figure]:
        p50, p99 = np.percentile(self.delays, (50, 99))
        return [
            Figure("responses followed and cancelled", self.num_followed),
            Figure("events seen by the follower", len(self.delays)),
            Figure(
                f"follower's first event is not number {FIRST}", self.num_wrong_starts, at_most=0
            ),
            Figure("followers with a gap in the numbers", self.num_gaps, at_most=0),
            Figure("followers that end with another event", self.num_differences, at_most=0),
            Figure("event at the follower after the owner's, p50", 1000 * p50, "ms"),
            Figure("event at the follower after the owner's, p99", 1000 * p99, "ms", at_most=1500),
            Figure("cancel through the third replica, longest", max(self.cancels), "s", at_most=2),
            Figure(
                "end of the follower's stream after it, longest", max(self.ends), "s", at_most=3
            ),
        ]


def measure(fleet: Fleet, options: argparse.Namespace) -> Sequence[Figure]:
    results = FollowResults()
    num_not_cancelled = 0
    for number in range(options.responses):
        urls = [replica.url for replica in fleet.replicas]
        turn = number % len(urls)
        a, b, c, *_ = urls[turn:] + urls[:turn]  # each replica is the owner in turn
        statuses = _follow_one(a, b, c, results)
        num_not_cancelled += sum(status != "cancelled" for status in statuses)
    return [
        *results.figures(),
        Figure("replicas that do not say cancelled afterwards", num_not_cancelled, at_most=0),
    ]


def _follow_one(a: str, b: str, c: str, results: FollowResults) -> list[str]:
    """Returns the status that each replica tells of the response at the end."""
    path = f"/v1/responses/{start_response(a)}"
    owner, follower = Followed(), Followed()
    threads = [
        threading.Thread(target=owner.read, args=(a, f"{path}?stream=true")),
        threading.Thread(
            target=follower.read, args=(b, f"{path}?stream=true&starting_after={FIRST - 1}")
        ),
    ]
    for thread in threads:
        thread.start()
    time.sleep(_SECONDS)
    start = time.monotonic()
    _ask(c, "POST", f"{path}/cancel")
    cancelled = time.monotonic()
    for thread in threads:
        thread.join()
    results.add(owner, follower, start, cancelled)
    return [str(_ask(url, "GET", path)["status"]) for url in (a, b, c)]


def start_response(url: str) -> str:
    """Starts a long response in the background, and returns its id."""
    body: Body = {"model": MODEL, "input": "Tell a long story.", "background": True}
    body |= {"max_output_tokens": _MAX_TOKENS, "ignore_eos": True}
    return str(_ask(url, "POST", "/v1/responses", body)["id"])


def _ask(url: str, method: str, path: str, body: Body | None = None) -> Body:
    """Raises SystemExit: the answer is an error."""
    client = JsonClient(url)
    try:
        status, answer = client.ask(method, path, body)
    finally:
        client.close()
    if status != 200:
        raise SystemExit(f"{method} {path}: {status} {answer}")
    return answer


def run(options: argparse.Namespace) -> Sequence[Figure]:
    with running_fleet(options.replicas) as fleet:
        return measure(fleet, options)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=int, default=NUM_REPLICAS, help="at least three")
    parser.add_argument("--responses", type=int, default=20)


COMMAND = Command(
    help="follows a background response on another replica, and cancels it through a third",
    run=run,
    add_arguments=_add_arguments,
    short={"replicas": 3, "responses": 2},
)
