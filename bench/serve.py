"""Streamed load on OpenAI-compatible servers: throughput, time to first token, gaps, goodput.

Every round sends the same new random prompts of token ids to each side in turn (A B A B), greedy
and without an end of text, and reads the streams: one side is idle while another works. Sides are
the server at URL or one that `--serve` starts, further servers by `--side NAME URL`, and with
`--compare genai MODEL_DIR` an `openvino_genai.ContinuousBatchingPipeline` with its defaults, in
this process. Requests come at once, in bursts or by a Poisson process; with rates, the table tells
which share of the requests was served within limits, against the rate.

    python -m bench.serve --serve MODEL_DIR --compare genai MODEL_DIR
    python -m bench.serve --serve MODEL_DIR --side llama.cpp http://127.0.0.1:8080/v1
    python -m bench.serve --serve MODEL_DIR --arrivals poisson --rates 0.5 1 2 -n 24 -p 128 1000
    python -m bench.serve http://127.0.0.1:8000/v1
"""

from __future__ import annotations

import argparse
import asyncio
import random
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import uvloop

from bench.process import ServerProcess, server_process
from bench.report import machine
from bench.serving.load_shape import ARRIVALS, LoadShape
from bench.serving.memory_speed import MemorySpeed
from bench.serving.results import Limits, figures_table, memory_table, ratios_table
from bench.serving.rounds import run_rounds
from bench.serving.sides import Genai, Server, Side


def parser_of_flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("url", nargs="?", help="base URL of a running server, with its /v1")
    add("--serve", type=Path, metavar="MODEL_DIR", help="start fastovms on a model")
    add("--serve-flag", action="append", default=[], metavar="FLAG", help="for --serve's server")
    add("--model", help="model name (default: the first that a server lists)")
    add("--compare", nargs=2, metavar=("genai", "MODEL_DIR"))
    add("--side", nargs=2, action="append", default=[], metavar=("NAME", "URL"),
        help="a further server; may be repeated")  # fmt: skip
    add("-n", "--clients", type=int, nargs="+", default=[1, 8, 32], help="requests of a round")
    add("-p", "--prompt-tokens", type=int, nargs="+", default=[128], help="in turn, where several")
    add("-g", "--output-tokens", type=int, nargs="+", default=[64])
    add("-r", "--runs", type=int, default=5, help="rounds of each load")
    add("--arrivals", choices=ARRIVALS, default=ARRIVALS[0])
    add("--rates", type=float, nargs="+", default=[1.0], metavar="R",
        help="requests a second, unless all come at once")  # fmt: skip
    add("--burst", type=int, default=8, help="requests of a burst")
    limits = Limits()
    add("--first-token-limit", type=float, default=limits.first_token, metavar="SECONDS")
    add("--token-limit", type=float, default=limits.per_token, metavar="SECONDS")
    add("--seed", type=int, default=0, help="of prompts and arrivals")
    return parser


def load_shapes(arguments: argparse.Namespace) -> list[LoadShape]:
    at_once = arguments.arrivals == "at-once"
    return [
        LoadShape(
            num_requests,
            arguments.prompt_tokens,
            arguments.output_tokens,
            arguments.arrivals,
            rate,
            arguments.burst,
        )
        for num_requests in arguments.clients
        for rate in ([float("inf")] if at_once else arguments.rates)
    ]


def main() -> None:
    parser = parser_of_flags()
    arguments = parser.parse_args()
    if (arguments.url is None) == (arguments.serve is None):
        parser.error("give either a URL or --serve MODEL_DIR")
    if arguments.compare is not None and arguments.compare[0] != "genai":
        parser.error(f"--compare knows genai, not {arguments.compare[0]}")
    server: AbstractContextManager[ServerProcess | None] = nullcontext()
    if arguments.serve is not None:
        server = server_process(
            ["-m", "fastovms", "serve", str(arguments.serve), *arguments.serve_flag]
        )
    rng = random.Random(arguments.seed)
    limits = Limits(arguments.first_token_limit, arguments.token_limit)
    print(machine())
    lengths = [" or ".join(map(str, x)) for x in (arguments.prompt_tokens, arguments.output_tokens)]
    print(f"{lengths[0]} prompt and {lengths[1]} output tokens each\n")
    with server as started, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        base = arguments.url if started is None else f"{started.url}/v1"
        sides: dict[str, Side] = {"server": Server(base, arguments.model, runner)}
        for name, url in arguments.side:
            sides[name] = Server(url, arguments.model, runner)
        if arguments.compare is not None:
            sides["genai"] = Genai(Path(arguments.compare[1]))
        memory = MemorySpeed()
        results = [
            run_rounds(sides, shape, num_rounds=arguments.runs, rng=rng, memory=memory)
            for shape in load_shapes(arguments)
        ]
    print(figures_table(results, limits))
    if len(sides) > 1:
        print(f"\n{ratios_table(results)}")
    print(f"\n{memory_table(results)}")


if __name__ == "__main__":
    main()
