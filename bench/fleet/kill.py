"""`kill`: a replica is killed in the middle of many streams. Only its own streams may end; what was
acknowledged is there from the others, and it comes back without a failed request."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import openai

from bench.endurance.json_client import JsonClient
from bench.endurance.load.openai_load import openai_load
from bench.endurance.server import MODEL, ServerUnderTest
from bench.figures.command import Command
from bench.figures.figure import Figure
from bench.fleet.fleet import NUM_REPLICAS, Fleet, running_fleet
from bench.fleet.follow import start_response
from bench.fleet.state_load import StateLoad
from bench.fleet.streams import Streams, find_replicas

LEASE_LIMIT: Final = 10.0
"""Seconds after which nobody may believe any longer that a dead replica runs a response."""
_NUM_BACKGROUND: Final = 4
_NUM_RETRYING: Final = 20
_RETRYING_TOKENS: Final = 50
_HEAD_START: Final = 0.1
"""Seconds after which a request has reached a replica."""
_PATIENCE: Final = 60.0
_RETRIED: Final = (openai.APIConnectionError, openai.InternalServerError)
"""What the openai client tries again by itself where no part of the answer has come."""


def measure(fleet: Fleet, options: argparse.Namespace) -> Sequence[Figure]:
    victim = fleet.replicas[0]
    load = StateLoad(fleet.url, options.seed)
    with load.running():
        load.wait_for(options.operations)
        figures = asyncio.run(_kill(fleet, options, victim))
    load.check()
    figures += [*load.figures(), *_restart(fleet, options, victim)]
    load.close()
    return figures


async def _kill(fleet: Fleet, options: argparse.Namespace, victim: ServerUnderTest) -> list[Figure]:
    streams = Streams(fleet.url, options.streams, options.tokens)
    reading = asyncio.create_task(streams.run())
    while not streams.have_begun:
        if reading.done():
            raise SystemExit("the streams have ended before the kill: ask for more --tokens")
        await asyncio.sleep(0.02)
    asking = asyncio.create_task(_ask_with_retries(fleet.url))
    await asyncio.sleep(_HEAD_START)
    paths, killed = await asyncio.to_thread(_start_and_kill, victim)
    num_running = streams.num_running
    others = [replica for replica in fleet.replicas if replica is not victim]
    failed = await asyncio.to_thread(_wait_until_failed, others, paths)
    await reading
    await find_replicas(streams.all, fleet.envoy)
    broken = [stream for stream in streams.all if stream.error is not None]
    print("errors:", dict(Counter(repr(stream.error) for stream in broken)))
    of_victim = victim.url.removeprefix("http://")
    num_failed_again = await streams.ask_again(broken)
    await streams.close()
    return [
        Figure("streams", len(streams.all)),
        Figure("streams that ran when it was killed", num_running, at_least=1),
        Figure("streams of the killed replica that broke off", len(broken), at_least=1),
        Figure(
            "streams of others that broke off",
            sum(stream.replica != of_victim for stream in broken),
            at_most=0,
        ),
        Figure(
            "broken off with an error that the openai client does not try again",
            sum(not isinstance(stream.error, _RETRIED) for stream in broken),
            at_most=0,
        ),
        Figure("broken streams that failed when asked for again", num_failed_again, at_most=0),
        Figure("other requests in flight, of a client that retries", _NUM_RETRYING),
        Figure("of these failed", await asking, at_most=0),
        Figure("background responses that it ran", len(paths)),
        Figure("until all others say that these failed", failed - killed, "s", at_most=LEASE_LIMIT),
    ]


def _start_and_kill(victim: ServerUnderTest) -> tuple[list[str], float]:
    """Returns the paths of responses that the replica was running when it was killed, and when it
    was."""
    with ThreadPoolExecutor(_NUM_BACKGROUND) as pool:
        ids = list(pool.map(start_response, [victim.url] * _NUM_BACKGROUND))
    victim.kill()
    return [f"/v1/responses/{id}" for id in ids], time.monotonic()


async def _ask_with_retries(url: str) -> int:
    """Asks as clients do that set nothing, and returns how many requests failed."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answers = await asyncio.gather(
            *(
                client.completions.create(
                    model=MODEL, prompt=f"Question {number}", max_tokens=_RETRYING_TOKENS
                )
                for number in range(_NUM_RETRYING)
            ),
            return_exceptions=True,
        )
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    print(*failures[:5], sep="\n", file=sys.stderr)
    return len(failures)


def _wait_until_failed(replicas: Sequence[ServerUnderTest], paths: Sequence[str]) -> float:
    """Returns when every replica says of every response that it has failed. Raises SystemExit: they
    do not in time."""
    deadline = time.monotonic() + _PATIENCE
    for replica in replicas:
        client = JsonClient(replica.url)
        for path in paths:
            while (answer := client.ask("GET", path)[1]).get("status") != "failed":
                if time.monotonic() > deadline:
                    raise SystemExit(f"{replica.url}{path}: {answer}")
                time.sleep(0.05)
        client.close()
    return time.monotonic()


def _restart(fleet: Fleet, options: argparse.Namespace, victim: ServerUnderTest) -> list[Figure]:
    """Starts it under load, until it has answered some of that."""
    with openai_load(fleet.url, MODEL, options.seed) as load:
        victim.start()
        ready = time.monotonic()
        fleet.wait_until_healthy()
        while not victim.metrics().get("request_success_total"):
            if time.monotonic() > ready + _PATIENCE:
                raise SystemExit("the killed replica is not asked again")
            time.sleep(0.05)
        asked = time.monotonic()
    print(*load.failures[:5], sep="\n", file=sys.stderr)
    return [
        Figure("restarted: from ready until it has answered a request", asked - ready, "s"),
        Figure("requests meanwhile", load.num_answers + len(load.failures), at_least=1),
        Figure("requests meanwhile that failed", len(load.failures), at_most=0),
    ]


def run(options: argparse.Namespace) -> Sequence[Figure]:
    # Nobody goes on with what the replica ran, which is to be told within the time of a lease.
    with running_fleet(options.replicas, "--no-resume") as fleet:
        return measure(fleet, options)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=int, default=NUM_REPLICAS, help="at least two")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=800, help="of a stream")
    parser.add_argument("--operations", type=int, default=100, help="acknowledged before the kill")


COMMAND = Command(
    help="kills a replica in the middle of many streams; only its own may end",
    run=run,
    add_arguments=_add_arguments,
    short={"replicas": 3, "streams": 16, "tokens": 1200, "operations": 10},
)
