"""Streamed load on an OpenAI-compatible server: throughput, time to first token, gaps.

Every run sends N requests at once with new random prompts of token ids, greedy and without an end
of text, and reads the streams. `--compare genai MODEL_DIR` gives the same prompts to
`openvino_genai.ContinuousBatchingPipeline` with its defaults, in this process, in turn with the
server (A B A B): one of the two is idle while the other works.

    python -m bench.serve --serve MODEL_DIR --compare genai MODEL_DIR
    python -m bench.serve http://127.0.0.1:8000/v1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import openvino as ov
import openvino_genai
import uvloop

from bench.process import ServerProcess, server_process
from bench.report import machine, median, ratio, table
from bench.streams import completion, run_streams
from fastovms.client.target import Target
from fastovms.load_test.data_sets import RANDOM_TOKEN_IDS
from fastovms.load_test.timeline import Load, Timeline

Prompts = list[list[int]]
Engine = Callable[[Prompts, int], Load]


class Server:
    """The server under test, over HTTP."""

    def __init__(self, url: str, model: str | None, runner: asyncio.Runner) -> None:
        self._target = Target.from_url(url)
        self._model = model if model is not None else _first_model(url)
        self._runner = runner

    def __call__(self, prompts: Prompts, num_output_tokens: int) -> Load:
        requests = [completion(self._model, prompt, num_output_tokens) for prompt in prompts]
        return self._runner.run(run_streams(self._target, requests))


class Genai:
    """The C++ pipeline, in process."""

    def __init__(self, model_dir: Path) -> None:
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            model_dir, openvino_genai.SchedulerConfig(), "CPU"
        )
        self._num_requests = 0

    def __call__(self, prompts: Prompts, num_output_tokens: int) -> Load:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = num_output_tokens
        config.ignore_eos = True
        config.do_sample = False
        start = time.perf_counter()
        timelines = [Timeline(start, completion_tokens=0) for _ in prompts]
        handles = []
        for prompt in prompts:
            token_ids = ov.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(self._pipeline.add_request(self._num_requests, token_ids, config))
            self._num_requests += 1
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter()
            for handle, timeline in zip(handles, timelines, strict=True):
                while handle.can_read():
                    (output,) = handle.read().values()
                    timeline.arrivals.append(now)
                    timeline.completion_tokens = timeline.num_tokens + len(output.generated_ids)
        return Load(time.perf_counter() - start, timelines)


def _first_model(url: str) -> str:
    with urlopen(f"{url.rstrip('/')}/models") as response:
        name: str = json.load(response)["data"][0]["id"]
    return name


def random_prompts(rng: random.Random, num_prompts: int, num_tokens: int) -> Prompts:
    return [rng.choices(RANDOM_TOKEN_IDS, k=num_tokens) for _ in range(num_prompts)]


def percentile(values: list[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else float("nan")


def row(num_clients: int, name: str, loads: list[Load]) -> list[object]:
    """One line of the table: medians over runs of throughput, percentiles over all streams."""
    timelines = [timeline for load in loads for timeline in load.timelines]
    first = [1000 * timeline.time_to_first_token for timeline in timelines]
    gaps = [1000 * gap for timeline in timelines for gap in timeline.gaps]
    return [
        num_clients,
        name,
        median([load.tokens_per_second for load in loads]),
        percentile(first, 50),
        percentile(first, 99),
        percentile(gaps, 50),
        percentile(gaps, 99),
        max(gaps, default=float("nan")),
    ]


HEADER = (
    "clients", "", "tok/s", "first p50 ms", "first p99", "gap p50 ms", "gap p99", "gap max",
)  # fmt: skip


def measure(
    engines: dict[str, Engine],
    num_clients: int,
    *,
    num_runs: int,
    num_prompt_tokens: int,
    num_output_tokens: int,
    rng: random.Random,
) -> dict[str, list[Load]]:
    """Runs every engine in turn on the same prompts, after one run each to warm up."""
    loads: dict[str, list[Load]] = {name: [] for name in engines}
    for number in range(-1, num_runs):
        prompts = random_prompts(rng, num_clients, num_prompt_tokens)
        for name, engine in engines.items():
            load = engine(prompts, num_output_tokens)
            expected = num_clients * num_output_tokens
            if load.num_tokens != expected:
                raise SystemExit(f"{name}: {load.num_tokens} output tokens, not {expected}")
            if number >= 0:
                loads[name].append(load)
    return loads


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m bench.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", nargs="?", help="base URL of a running server, with its /v1")
    parser.add_argument("--serve", type=Path, metavar="MODEL_DIR", help="start fastovms on a model")
    parser.add_argument(
        "--serve-flag",
        action="append",
        default=[],
        metavar="FLAG",
        help="a flag for --serve's server",
    )
    parser.add_argument("--model", help="model name (default: the first that the server lists)")
    parser.add_argument("--compare", nargs=2, metavar=("genai", "MODEL_DIR"))
    parser.add_argument("-n", "--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("-p", "--prompt-tokens", type=int, default=128)
    parser.add_argument("-g", "--output-tokens", type=int, default=64)
    parser.add_argument("-r", "--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
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
    print(machine())
    print(f"{arguments.prompt_tokens} prompt and {arguments.output_tokens} output tokens each\n")
    rows: list[list[object]] = []
    ratios: list[tuple[int, str]] = []
    with server as started, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        base = arguments.url if started is None else f"{started.url}/v1"
        engines: dict[str, Engine] = {"server": Server(base, arguments.model, runner)}
        if arguments.compare is not None:
            engines["genai"] = Genai(Path(arguments.compare[1]))
        for num_clients in arguments.clients:
            loads = measure(
                engines,
                num_clients,
                num_runs=arguments.runs,
                num_prompt_tokens=arguments.prompt_tokens,
                num_output_tokens=arguments.output_tokens,
                rng=rng,
            )
            speeds = {
                name: [load.tokens_per_second for load in runs] for name, runs in loads.items()
            }
            rows.extend(row(num_clients, name, runs) for name, runs in loads.items())
            if "genai" in speeds:
                ratios.append((num_clients, ratio(speeds["server"], speeds["genai"])))
    print(table(HEADER, rows))
    if ratios:
        print(f"\n{table(('clients', 'server / genai, output tok/s'), ratios)}")


if __name__ == "__main__":
    main()
