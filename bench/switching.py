"""Loads more models than fit into memory, under requests of many clients.

    python -m bench.switching                          # the demo model three times
    python -m bench.switching a=DIR b=DIR c=DIR        # other models
    python -m bench.switching --plot memory.svg        # with a plot of memory over time
    python -m bench.switching --serve-flag=--backend --serve-flag=genai

Eight clients request three models at random, two of which fit into memory; then two models take
turns. The exit status is 1 if a request fails, or if memory, threads or descriptors grow.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from bench.endurance.server import ServerUnderTest, server_under_test
from fastovms.server_config import DEMO_MODEL

_TIMEOUT: Final = 600.0
_MAX_GROWTH: Final = 100.0
"""The growth in MiB that the turns of two models may cause."""
_SAMPLE_INTERVAL: Final = 0.5


@dataclass(slots=True)
class Memory:
    """Samples of a process's memory.

    Attributes:
        seconds, mebibytes: the time and the resident memory of each sample.
    """

    seconds: list[float] = field(default_factory=list)
    mebibytes: list[float] = field(default_factory=list)

    @contextmanager
    def sampled(self, server: ServerUnderTest) -> Iterator[None]:
        """Takes samples in a thread until the end of the block."""
        end, start = threading.Event(), time.monotonic()

        def sample() -> None:
            while not end.wait(_SAMPLE_INTERVAL):
                self.seconds.append(time.monotonic() - start)
                self.mebibytes.append(server.resident_memory())

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()


def ask(url: str, model: str) -> float:
    """Requests a few tokens. Returns the seconds to the end of the answer. Raises HTTPError."""
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}
    return _post(f"{url}/v1/completions", body)


def _post(url: str, body: dict[str, object]) -> float:
    start = time.perf_counter()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=_TIMEOUT) as response:
        response.read()
    return time.perf_counter() - start


def ask_at_random(url: str, names: Sequence[str], num_requests: int, num_clients: int) -> list[str]:
    """Sends requests for random models from several clients at once. Returns the failures."""
    rng = random.Random(0)
    asked = [rng.choice(names) for _ in range(num_requests)]
    failures: list[str] = []
    lock = threading.Lock()

    def client() -> None:
        while True:
            with lock:
                if not asked:
                    return
                name = asked.pop()
            try:
                ask(url, name)
            except HTTPError as error:
                failures.append(f"{error.code} {error.read().decode()[:300]}")
            except OSError as error:
                failures.append(repr(error))

    clients = [threading.Thread(target=client) for _ in range(num_clients)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    return failures


def take_turns(server: ServerUnderTest, names: Sequence[str], num_rounds: int) -> bool:
    """Requests models in turn, each evicts the other one. Returns whether nothing grows."""
    seconds: list[float] = []
    for name in names:  # what is made once, such as compiled kernels, is there afterwards
        ask(server.url, name)
    before = _taken(server)
    for _ in range(num_rounds):
        seconds += [ask(server.url, name) for name in names]
    after = _taken(server)
    print(f"a switch: {statistics.median(seconds):.2f} s (median of {len(seconds)})")
    for what, was, is_ in zip(
        ("memory, MiB", "threads", "descriptors"), before, after, strict=True
    ):
        print(f"{what} before and after {num_rounds} rounds: {was:.0f}, {is_:.0f}")
    grown = [is_ - was for was, is_ in zip(before, after, strict=True)]
    return grown[0] <= _MAX_GROWTH and grown[1] <= 1 and grown[2] <= 1


def _taken(server: ServerUnderTest) -> tuple[float, int, int]:
    return server.resident_memory(), server.num_threads(), server.num_descriptors()


def cold_start(model: str, flags: Sequence[str]) -> float:
    """Returns the seconds from the start of a server with one model to its first answer."""
    start = time.perf_counter()
    with server_under_test("--model", model, *flags) as server:
        ask(server.url, model.partition("=")[0])
        return time.perf_counter() - start


def draw(memory: Memory, path: Path) -> None:
    """Writes an SVG file of memory over time."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "switching"  # the same samples give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 3), layout="constrained")
    axes.plot(memory.seconds, memory.mebibytes)
    axes.set_xlabel("seconds of requests at random")
    axes.set_ylabel("memory, MiB")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> int:
    """Runs the test and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", metavar="NAME=DIR")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cold-starts", type=int, default=2, help="of each that takes turns")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    parser.add_argument("--serve-flag", action="append", default=[], metavar="FLAG")
    arguments = parser.parse_args()
    models = arguments.models or [f"{name}={DEMO_MODEL}" for name in "abc"]
    names = [model.partition("=")[0] for model in models]
    flags = [part for model in models for part in ("--model", model)]
    common = ("--no-tune", "--cache-size", "0.2", *arguments.serve_flag)
    starts = [cold_start(one, common) for one in models[:2] for _ in range(arguments.cold_starts)]
    if starts:
        print(f"a cold start: {statistics.median(starts):.2f} s (median of {len(starts)})")
    memory = Memory()
    limit = str(len(names) - 1)
    with (
        server_under_test(*flags, *common, "--max-loaded-models", limit) as server,
        memory.sampled(server),
    ):
        start = time.perf_counter()
        failures = ask_at_random(server.url, names, arguments.requests, arguments.clients)
        seconds = time.perf_counter() - start
        loads = server.metrics()["model_loads_total"]
        print(f"{arguments.requests} requests in {seconds:.0f} s, {loads:.0f} loads")
        print(f"{len(failures)} failed", *failures[:5], sep="\n")
    with server_under_test(*flags, *common, "--max-loaded-models", "1") as server:
        is_steady = take_turns(server, names[:2], arguments.rounds)
    print(f"memory at most {max(memory.mebibytes):.0f} MiB with {limit} of {len(names)} loaded")
    if arguments.plot is not None:
        draw(memory, arguments.plot)
    return 0 if is_steady and not failures else 1


if __name__ == "__main__":
    sys.exit(main())
