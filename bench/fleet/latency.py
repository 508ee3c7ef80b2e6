"""`latency`: what Envoy before four replicas adds to a request's time to the first token, against
one of them asked directly in turn with it, and how many requests a second pass it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
import uvloop

from bench.common.process import ServerProcess, server_process, two_cores
from bench.common.report import median
from bench.common.streams import completion
from bench.endurance.server import MODEL
from bench.figures.command import Command
from bench.figures.figure import Figure
from bench.fleet.fleet import NUM_REPLICAS, balanced, running_fleet
from bench.null_engine.whole_requests import KINDS, OURS, Kind, Run, WrkLoad
from fastovms.parts.client.http_client import HttpClient, Target
from fastovms.parts.load_test.command import RANDOM_TOKEN_IDS, run_load

_PROMPT_TOKENS: Final = 64
_OUTPUT_TOKENS: Final = 4
_STREAMS: Final = (1, 8)
_WRK_KINDS: Final = KINDS[:2]
_WRK_CONNECTIONS: Final = 32
_WRK_SECONDS: Final = 3


async def first_tokens(
    urls: Sequence[str], num_streams: int, count: int, random: Random
) -> list[list[float]]:
    """Asks each server in turn with so many streams at a time, all of them new prompts.

    Returns:
        The milliseconds to the first tokens of `count` streams, for each server.
    """
    clients = [HttpClient(Target.from_url(url)) for url in urls]
    times: list[list[float]] = [[] for _ in urls]
    for number in range(-1, count // num_streams):
        for client, measured in zip(clients, times, strict=True):
            prompts = [
                random.choices(RANDOM_TOKEN_IDS, k=_PROMPT_TOKENS) for _ in range(num_streams)
            ]
            requests = [completion(MODEL, prompt, _OUTPUT_TOKENS) for prompt in prompts]
            path = client.target.path
            load = await run_load(client, [r._replace(path=path + r.path) for r in requests])
            for timeline in load.timelines:
                if timeline.failure is not None:
                    raise timeline.failure
                if number >= 0:  # the first ones warm up
                    measured.append(1000 * timeline.time_to_first_token)
    for client in clients:
        await client.close()
    return times


def _added(options: argparse.Namespace) -> list[Figure]:
    figures = []
    with running_fleet(options.replicas) as fleet, balanced([fleet.replicas[0].url]) as (one, _):
        ways = {
            "one replica": fleet.replicas[0].url,
            "Envoy before it": one,
            f"Envoy before {options.replicas}": fleet.url,
        }
        for num_streams in _STREAMS:
            times = uvloop.run(
                first_tokens(
                    list(ways.values()), num_streams, options.requests, Random(options.seed)
                )
            )
            name = f"time to first token, {num_streams} at once"
            for percentile in (50, 99):
                values = [float(np.percentile(each, percentile)) for each in times]
                figures += [
                    Figure(f"{name}: {way}, p{percentile}", value, "ms")
                    for way, value in zip(ways, values, strict=True)
                ]
                added = values[1] - values[0]
                figures.append(Figure(f"{name}: Envoy adds, p{percentile}", added, "ms"))
    return figures


def _throughput(options: argparse.Namespace) -> list[Figure]:
    """The null servers share one core, Envoy and wrk the other."""
    server_core, other_core = two_cores()
    load = WrkLoad(_WRK_CONNECTIONS, _WRK_SECONDS, other_core)
    figures = []
    with ExitStack() as stack:
        servers = [
            stack.enter_context(server_process((*OURS, "--null-tokenizer"), core=server_core))
            for _ in range(options.replicas)
        ]
        url, envoy = stack.enter_context(balanced([server.url for server in servers]))
        through = ServerProcess(url, envoy.process.pid)
        _keep_on(other_core, through.pid)
        for kind in _WRK_KINDS:
            figures += _compare(kind, load, servers[0], through, options.runs)
    return figures


def _compare(
    kind: Kind, load: WrkLoad, direct: ServerProcess, through: ServerProcess, num_runs: int
) -> list[Figure]:
    runs: tuple[list[Run], list[Run]] = ([], [])
    for number in range(-1, num_runs):
        for server, measured in zip((direct, through), runs, strict=True):
            run = load.run(server, kind)
            if number >= 0:
                measured.append(run)
    speeds = [median([run.requests_per_second for run in measured]) for measured in runs]
    costs = [median([run.cpu_ms for run in measured]) for measured in runs]
    name = f"null engine, {'stream' if kind.stream else 'unary'} of {kind.num_tokens}"
    return [
        Figure(f"{name}: one replica on one core", speeds[0], "requests/s"),
        Figure(f"{name}: through Envoy, which shares its core with wrk", speeds[1], "requests/s"),
        Figure(f"{name}: processor time of a request, replica", costs[0], "ms"),
        Figure(f"{name}: processor time of a request, Envoy", costs[1], "ms"),
    ]


def _keep_on(core: int, pid: int) -> None:
    """Lets all threads of a process run on one core only."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def run(options: argparse.Namespace) -> Sequence[Figure]:
    return [*_added(options), *_throughput(options)]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=int, default=NUM_REPLICAS)
    parser.add_argument(
        "--requests", type=int, default=400, help="each way, of each number at once"
    )
    parser.add_argument("--runs", type=int, default=5, help="of wrk, each way")


COMMAND = Command(
    help="tells what Envoy adds to the time to the first token, and what passes it in a second",
    run=run,
    add_arguments=_add_arguments,
    short=None,
)
