"""Streamed load on OpenAI-compatible servers: throughput, time to first token, gaps, goodput.

Every round sends the same new random prompts of token ids to each side in turn (A B A B), greedy
and without an end of text, and reads the streams: one side is idle while another works. Sides are
the server at URL or one that `--serve` starts, further servers by `--side NAME URL`, and with
`--compare genai MODEL_DIR` an `openvino_genai.ContinuousBatchingPipeline` with its defaults, in
this process. Requests come at once, in bursts or by a Poisson process; with rates, the table tells
which share of the requests was served within limits, against the rate. With `--from-start`, each
side is started anew, and gets round after round from its first second on.

    python -m bench.serve --serve MODEL_DIR --compare genai MODEL_DIR
    python -m bench.serve --serve MODEL_DIR --side llama.cpp http://127.0.0.1:8080/v1
    python -m bench.serve --serve MODEL_DIR --compare genai MODEL_DIR --from-start 60 -n 8 -r 3
    python -m bench.serve --serve MODEL_DIR --arrivals poisson --rates 0.5 1 2 -n 24 -p 128 1000
    python -m bench.serve http://127.0.0.1:8000/v1
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

import uvloop

from bench.common.process import ServerProcess, server_process
from bench.common.report import machine
from bench.serving.load_shape import ARRIVALS, LoadShape
from bench.serving.results import (
    Limits,
    figures_table,
    goodput_table,
    memory_table,
    ratios_table,
)
from bench.serving.rounds import Rounds, run_from_start, run_rounds
from bench.serving.sides import Genai, Server, Side
from fastovms.errors import ConfigurationError, RequestFailed
from fastovms.parts.client.http_client import Target
from fastovms.parts.doctor.facts import measure_bandwidth
from fastovms.parts.load_test.report import Load
from fastovms.setting import integer, number
from fastovms.system.memory import num_usable_cpus

FIRST_SIDE: Final = "server"
"""The name of the side with which the others are compared."""

GENAI: Final = "genai"

QUIET_FLAGS: Final = ("--no-tune", "--prefix-cache-disk-size=0", "--access-log=off")
"""Flags of a server that `--serve` starts: it has no data of earlier runs, whose prompts may be the
same, is idle while another side works, and logs no requests."""

REST_SECONDS: Final = 1.0
"""The pause of all sides before each turn in seconds: an idle server allocates memory."""


def parser_of_flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    count, rate, seconds = integer(1), number("requests a second", positive=True), number("seconds")
    add("url", nargs="?", help="base URL of a running server, with its /v1")
    add("--serve", type=Path, metavar="MODEL_DIR", help="start fastovms on a model")
    add("--serve-flag", action="append", default=[], metavar="FLAG", help="for --serve's server")
    add("--model", help="model name (default: the first that a server lists)")
    add("--compare", nargs=2, metavar=(GENAI, "MODEL_DIR"))
    add("--side", nargs=2, action="append", default=[], metavar=("NAME", "URL"),
        help="a further server; may be repeated")  # fmt: skip
    add("-n", "--requests", type=count, nargs="+", default=[1, 8, 32], help="of a round")
    add("-p", "--prompt-tokens", type=count, nargs="+", default=[128], help="in turn, if several")
    add("-g", "--output-tokens", type=count, nargs="+", default=[64], help="likewise")
    add("-r", "--runs", type=count, default=5, help="rounds of each load, or starts")
    add("--from-start", type=seconds, metavar="SECONDS",
        help="measure this long after each start of --serve's server and the pipeline")  # fmt: skip
    add("--warm-up", type=count, metavar="REQUESTS", help="at once before (default: a round)")
    add("--arrivals", choices=ARRIVALS, default=ARRIVALS[0])
    add("--rates", type=rate, nargs="+", metavar="R",
        help="requests a second, unless all come at once (default: 1)")  # fmt: skip
    add("--burst", type=count, default=8, help="requests of a burst")
    limits = Limits()
    add("--first-token-limit", type=seconds, default=limits.first_token, metavar="SECONDS")
    add("--token-limit", type=seconds, default=limits.per_token, metavar="SECONDS")
    add("--seed", type=int, default=0, help="of prompts and arrivals")
    return parser


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Raises SystemExit: flags are wrong or contradict each other."""
    parser = parser_of_flags()
    arguments = parser.parse_args(argv)
    if (arguments.url is None) == (arguments.serve is None):
        parser.error("give either a URL or --serve MODEL_DIR")
    if arguments.compare is not None:
        side, model_dir = arguments.compare
        if side != GENAI:
            parser.error(f"--compare knows {GENAI}, not {side}")
        if not Path(model_dir).is_dir():
            parser.error(f"--compare: there is no directory {model_dir}")
    if arguments.from_start is not None and (arguments.serve is None or arguments.side):
        parser.error("--from-start needs --serve, and starts no server of --side")
    if arguments.rates is not None and arguments.arrivals == "at-once":
        parser.error("--rates needs --arrivals bursts or poisson")
    names = {FIRST_SIDE, GENAI}
    for name, _ in arguments.side:
        if name in names:
            parser.error(f"--side: the name {name} is taken")
        names.add(name)
    try:
        arguments.url = arguments.url and Target.from_url(arguments.url)
        arguments.side = [(name, Target.from_url(url, "--side")) for name, url in arguments.side]
    except ConfigurationError as error:
        parser.error(str(error))
    return arguments


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
        for num_requests in arguments.requests
        for rate in ([float("inf")] if at_once else arguments.rates or [1.0])
    ]


def memory_speed() -> float:
    """Returns the bytes per second that all cores together read from memory now."""
    return measure_bandwidth(num_usable_cpus(), 0, 2**40, max_seconds=0.1)


def servers(
    targets: Sequence[tuple[str, Target]], model: str | None, runner: asyncio.Runner
) -> dict[str, Server]:
    """Raises SystemExit: a server does not list its models."""
    sides: dict[str, Server] = {}
    for name, target in targets:
        try:
            sides[name] = Server(target, model, runner)
        except RequestFailed as error:
            raise SystemExit(f"{name}: {error}") from None
    return sides


def tell(name: str, load: Load) -> None:
    """Prints the result of a turn at once, because an interrupted run prints no tables."""
    print(
        f"{name}: {len(load.timelines)} requests, {load.tokens_per_second:.4g} tokens/s",
        file=sys.stderr,
        flush=True,
    )


def started_server(arguments: argparse.Namespace) -> AbstractContextManager[ServerProcess]:
    return server_process(
        ["-m", "fastovms", "serve", str(arguments.serve), *QUIET_FLAGS, *arguments.serve_flag]
    )


def starts_of_sides(
    arguments: argparse.Namespace, runner: asyncio.Runner
) -> dict[str, Callable[[], AbstractContextManager[Side]]]:
    @contextmanager
    def server() -> Iterator[Side]:
        with started_server(arguments) as started:
            target = Target.from_url(started.url)
            side = servers([(FIRST_SIDE, target)], arguments.model, runner)[FIRST_SIDE]
            yield side
            print(f"{FIRST_SIDE}: decode kernels at the end: {side.decode_kernels()}")

    @contextmanager
    def pipeline() -> Iterator[Side]:
        yield Genai.load(Path(arguments.compare[1]))

    return {FIRST_SIDE: server, **({} if arguments.compare is None else {GENAI: pipeline})}


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(argv)
    rng = random.Random(arguments.seed)
    print(machine())
    lengths = [" or ".join(map(str, x)) for x in (arguments.prompt_tokens, arguments.output_tokens)]
    print(f"{lengths[0]} prompt and {lengths[1]} output tokens each\n")
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        if arguments.from_start is not None:
            starts = starts_of_sides(arguments, runner)
            results = [
                run_from_start(
                    starts,
                    shape,
                    seconds=arguments.from_start,
                    num_starts=arguments.runs,
                    rng=rng,
                    rest=lambda: time.sleep(REST_SECONDS),
                    memory_speed=memory_speed,
                    on_load=tell,
                )
                for shape in load_shapes(arguments)
            ]
            print_tables(results, arguments)
            return
        started = arguments.serve and stack.enter_context(started_server(arguments))
        first = arguments.url if started is None else Target.from_url(started.url)
        sides: dict[str, Side] = dict(
            servers([(FIRST_SIDE, first), *arguments.side], arguments.model, runner)
        )
        if arguments.compare is not None:
            sides[GENAI] = Genai.load(Path(arguments.compare[1]))
        results = [
            run_rounds(
                sides,
                shape,
                num_rounds=arguments.runs,
                num_warm_up=arguments.warm_up,
                rng=rng,
                rest=lambda: time.sleep(REST_SECONDS),
                memory_speed=memory_speed,
                on_load=tell,
            )
            for shape in load_shapes(arguments)
        ]
        for name, side in sides.items():
            if isinstance(side, Server) and (kernels := side.decode_kernels()):
                print(f"{name}: decode kernels at the end: {kernels}")
    print_tables(results, arguments)


def print_tables(results: Sequence[Rounds], arguments: argparse.Namespace) -> None:
    tables = [
        figures_table(results),
        goodput_table(results, Limits(arguments.first_token_limit, arguments.token_limit)),
        *([ratios_table(results)] if len(results[0].loads) > 1 else []),
        memory_table(results),
    ]
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
