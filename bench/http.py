"""Measures the HTTP layer and the API on one core, with the client on another core.

    python -m bench.http sse         # frames per second over 64 streams of a null engine
    python -m bench.http requests    # whole requests per second, and the time of one

`requests` needs wrk (apt-get install wrk). The null engine gives each request one token per
iteration of the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable

import uvloop

from bench.common.process import server_process, two_cores
from bench.common.report import machine, median, table
from bench.common.streams import completion, run_streams
from bench.null_engine.whole_requests import NULL_SERVER, measure_requests
from fastovms.parts.client.http_client import Target
from fastovms.parts.load_test.report import Load


def measure_sse(num_streams: int, num_tokens: int, num_runs: int) -> None:
    """Streams as fast as server and client can. Only frames with text are counted; several tokens
    share a frame if the client reads slowly."""
    server_core, client_core = two_cores()
    bodies = [completion("null", [1], num_tokens) for _ in range(num_streams)]
    with (
        server_process(NULL_SERVER, core=server_core) as (url, _),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        os.sched_setaffinity(0, {client_core})
        target = Target.from_url(f"{url}/v1")
        loads: list[Load] = []
        for number in range(-1, num_runs):
            load = runner.run(run_streams(target, bodies))
            if load.num_tokens != num_streams * num_tokens:
                raise SystemExit(f"{load.num_tokens} tokens, not {num_streams * num_tokens}")
            if number >= 0:
                loads.append(load)
    frames = [load.num_events / load.seconds for load in loads]
    rows = [
        [
            num_streams,
            num_tokens,
            median(frames),
            min(frames),
            max(frames),
            median([load.num_events / (num_streams * num_tokens) for load in loads]),
        ]
    ]
    print(table(("streams", "tokens each", "frames/s", "min", "max", "frames a token"), rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m bench.http",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    sse = commands.add_parser("sse")
    sse.add_argument("-n", "--streams", type=int, default=64)
    sse.add_argument("-g", "--tokens", type=int, default=5000, help="of each stream")
    sse.add_argument("-r", "--runs", type=int, default=5)
    sse.set_defaults(measure=lambda a: measure_sse(a.streams, a.tokens, a.runs))
    requests = commands.add_parser("requests")
    requests.add_argument("-c", "--connections", type=int, default=32)
    requests.add_argument("-d", "--seconds", type=int, default=4, help="of each run")
    requests.add_argument("-r", "--runs", type=int, default=5)
    requests.add_argument("--tokenizer", action="store_true", help="encode the prompts too")
    requests.set_defaults(
        measure=lambda a: measure_requests(a.connections, a.seconds, a.runs, encodes=a.tokenizer)
    )
    arguments = parser.parse_args()
    measure: Callable[[argparse.Namespace], None] = arguments.measure
    print(f"{machine()}\n")
    measure(arguments)


if __name__ == "__main__":
    main()
