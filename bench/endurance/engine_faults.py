"""`engine`: models that fail, hang, are slow or return NaN, a KV cache that is too small, and
processes that are stopped or killed.

The first token of a prompt selects the behaviour of the fake model (`tests.controlled_server`). A
fault of one request must not affect other requests. After a fault that ends the engine, `/health`
must soon report failure, every request must end with an error, and the process must exit with
status 1.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import urlopen

from bench.endurance.completions import Completion, Ending, complete, complete_all
from bench.endurance.server import MODEL, ServerUnderTest, server_under_test
from bench.figures.command import Command
from bench.figures.figure import Figure
from tests.controlled_server import DAMAGE, HANG, NAME, NAN, RAISE, SLOW, SLOW_SECONDS

CONTROLLED: Final = ("-m", "tests.controlled_server", "0", "serve")
ENGINE_TIMEOUT: Final = 6.0
STOPPED_FOR: Final = 7.0
"""The seconds to wait, which exceed the engine's own limit."""
SMALL_CACHE: Final = "0.0004"
"""The size of the KV cache in GB: 419 blocks of 16 tokens."""
NUM_CROWD: Final = 32
CROWD_TOKENS: Final = 250
EXIT_TIMEOUT: Final = 30.0

_WORKER: Final = b"fastovms.parts.genai.worker"


@dataclass(slots=True)
class Ends:
    """The results of the servers whose engine was ended in one way.

    Attributes:
        what: the way.
        most_seconds: the limit of `slowest`.
        slowest: the longest time from the fault until `/health` reported failure, in seconds.
        num_other_codes: processes that did not end, or with an exit status other than 1.
        num_without_error: requests that ended without status 500 and without an error event.
        num_ends: engines that were ended.
    """

    what: str
    most_seconds: float
    slowest: float = 0.0
    num_other_codes: int = 0
    num_without_error: int = 0
    num_ends: int = 0

    def figures(self) -> list[Figure]:
        red = f"{self.what}: longest until /health is red"
        return [
            Figure(f"{self.what}: engines ended", self.num_ends),
            Figure(red, self.slowest, "s", at_most=self.most_seconds),
            Figure(f"{self.what}: requests told of no error", self.num_without_error, at_most=0),
            Figure(f"{self.what}: exit codes other than 1", self.num_other_codes, at_most=0),
        ]


def run(options: argparse.Namespace) -> Sequence[Figure]:
    rng = random.Random(options.seed)
    crowd = [Completion(_prompt(rng), CROWD_TOKENS) for _ in range(NUM_CROWD)]
    figures: list[Figure] = []
    with server_under_test("--engine-timeout", f"{ENGINE_TIMEOUT:g}", program=CONTROLLED) as server:
        figures += _nonsense(server, rng, options.requests)
        figures += _slow(server, rng)
        figures += _stopped(server, rng)
        texts = complete_all(server.url, NAME, crowd)
        figures.append(_health(server, "these"))
    with server_under_test("--cache-size", SMALL_CACHE, program=CONTROLLED) as server:
        figures += _out_of_blocks(server, crowd, texts)
    with ThreadPoolExecutor(2) as pool:  # most of it is waiting
        for ends in pool.map(lambda end: end(), _ways_to_end(options)):
            figures += ends.figures()
    return figures


def _ways_to_end(options: argparse.Namespace) -> list[Callable[[], Ends]]:
    after_timeout = ENGINE_TIMEOUT + 3
    return [
        *(
            partial(
                _ended, Ends(what, seconds), prompts, random.Random(options.seed), options.cycles
            )
            for what, prompts, seconds in (
                ("error in a step", [[RAISE]], 1.0),
                ("damaged model", [[DAMAGE], [50], [51]], 1.0),
                ("hang", [[HANG]], after_timeout),
            )
        ),
        *(
            partial(_worker_ended, Ends(what, seconds), number, options.cycles)
            for what, number, seconds in (
                ("genai process killed", signal.SIGKILL, 1.0),
                ("genai process stopped", signal.SIGSTOP, after_timeout),
            )
        ),
    ]


# Faults that affect one request only


def _nonsense(server: ServerUnderTest, rng: random.Random, count: int) -> list[Figure]:
    """Returns the figures of NaN logits for half of the requests, each beside three others."""
    broken: list[Ending] = []
    good: list[Ending] = []
    for _ in range(max(1, count // 4)):
        asked = [
            *(Completion([NAN, *_prompt(rng)], 8, stream) for stream in (False, True)),
            *(Completion(_prompt(rng), 8, stream) for stream in (False, True)),
        ]
        endings = complete_all(server.url, NAME, asked)
        broken += endings[:2]
        good += endings[2:]
    num_wrong = sum("not numbers" not in one.error for one in broken)
    return [
        Figure("NaN: requests", len(broken)),
        Figure("NaN: requests that ended without an error that says so", num_wrong, at_most=0),
        Figure("NaN: other requests", len(good)),
        Figure("NaN: other requests that failed", _num_failed(good), at_most=0),
    ]


def _slow(server: ServerUnderTest, rng: random.Random) -> list[Figure]:
    """Returns the figures of steps of 0.2 seconds, which must not count as hanging."""
    asked = [Completion([SLOW], 10, stream=True), *(Completion(_prompt(rng), 10) for _ in range(7))]
    start = time.monotonic()
    endings = complete_all(server.url, NAME, asked)
    seconds = time.monotonic() - start
    return [
        Figure("slow steps: requests that failed", _num_failed(endings), at_most=0),
        Figure("slow steps: all answers", seconds, "s", at_most=10 * SLOW_SECONDS + 3),
    ]


def _stopped(server: ServerUnderTest, rng: random.Random) -> list[Figure]:
    """Returns the figures of a process that is stopped for longer than a step may take. Its engine
    must not count as hanging."""
    asked = [Completion(_prompt(rng), 300, bool(i % 2)) for i in range(8)]
    with ThreadPoolExecutor(1) as pool:
        endings = pool.submit(complete_all, server.url, NAME, asked)
        time.sleep(0.5)
        server.signal(signal.SIGSTOP)
        time.sleep(STOPPED_FOR)
        server.signal(signal.SIGCONT)
        return [
            Figure("SIGSTOP of the server", STOPPED_FOR, "s"),
            Figure("SIGSTOP: requests that failed", _num_failed(endings.result()), at_most=0),
        ]


def _out_of_blocks(
    server: ServerUnderTest, crowd: Sequence[Completion], texts: Sequence[Ending]
) -> list[Figure]:
    """Compares requests that preempt each other with the same requests in a larger KV cache."""
    endings = complete_all(server.url, NAME, crowd)
    metrics = server.metrics()
    num_different = sum(a.text != b.text for a, b in zip(endings, texts, strict=True))
    return [
        Figure("out of KV blocks: preemptions", metrics["num_preemptions_total"], at_least=1),
        Figure("out of KV blocks: requests that failed", _num_failed(endings), at_most=0),
        Figure("out of KV blocks: texts that differ", num_different, at_most=0),
        Figure(
            "out of KV blocks: share in use at the end", metrics["kv_cache_usage_perc"], at_most=0
        ),
        _health(server, "these"),
    ]


# Faults that end the engine


def _ended(ends: Ends, prompts: list[list[int]], rng: random.Random, count: int) -> Ends:
    """Sends prompts that end the engine one after another beside running streams."""
    flags = ("--engine-timeout", f"{ENGINE_TIMEOUT:g}", "--failure-grace", "0.5")

    def trigger(url: str) -> None:
        for prompt in prompts:
            asked = (url, NAME, Completion(prompt, 8))
            threading.Thread(target=complete, args=asked, daemon=True).start()
            time.sleep(0.1)

    for _ in range(count):
        with server_under_test(*flags, program=CONTROLLED) as server:
            asked = [Completion(_prompt(rng), 3000, bool(i % 2)) for i in range(8)]
            _end(server, NAME, asked, partial(trigger, server.url), ends)
    return ends


def _worker_ended(ends: Ends, number: signal.Signals, count: int) -> Ends:
    flags = ("--engine-timeout", f"{ENGINE_TIMEOUT:g}", "--failure-grace", "0.5")
    for _ in range(count):
        with server_under_test(*flags, "--backend", "genai") as server:
            worker = _worker_of(server)
            asked = [Completion(list(range(20, 40)), 1500, bool(i % 2)) for i in range(4)]
            _end(server, MODEL, asked, partial(signal.pidfd_send_signal, worker, number), ends)
            os.close(worker)
    return ends


def _end(
    server: ServerUnderTest,
    model: str,
    asked: Sequence[Completion],
    trigger: Callable[[], None],
    ends: Ends,
) -> None:
    with ThreadPoolExecutor(1) as pool:
        endings = pool.submit(complete_all, server.url, model, asked)
        time.sleep(0.5)
        start = time.monotonic()
        trigger()
        while _is_healthy(server) and time.monotonic() < start + EXIT_TIMEOUT:
            time.sleep(0.01)
        ends.slowest = max(ends.slowest, time.monotonic() - start)
        try:
            code = server.process.wait(EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            code = 0
        ends.num_ends += 1
        ends.num_other_codes += code != 1
        told = [one for one in endings.result() if one.error and one.status in (200, 500)]
        ends.num_without_error += len(asked) - len(told)


def _worker_of(server: ServerUnderTest) -> int:
    """Returns a descriptor of the pipeline's process."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            command = (stat.parent / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if parent == server.process.pid and _WORKER in command:
            return os.pidfd_open(int(stat.parent.name))
    raise SystemExit(f"the server has no genai process\n{server.tail}")


# Shared helpers


def _is_healthy(server: ServerUnderTest) -> bool:
    try:
        with urlopen(f"{server.url}/health", timeout=5) as response:
            return bool(response.status == 200)
    except HTTPError:
        return False
    except OSError:  # it has ended
        return False


def _health(server: ServerUnderTest, what: str) -> Figure:
    return Figure(f"/health is good after all of {what}", _is_healthy(server), at_least=1)


def _num_failed(endings: Sequence[Ending]) -> int:
    for ending in endings:
        if not ending.is_good:
            print(f"failure: {ending.status} {ending.error}", flush=True)
    return sum(not ending.is_good for ending in endings)


def _prompt(rng: random.Random) -> list[int]:
    return [rng.randrange(10, 90) for _ in range(rng.randint(1, 40))]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=2000, help="beside each other, half of NaN")
    parser.add_argument("--cycles", type=int, default=10, help="of each way to end an engine")


COMMAND = Command(
    help="serves models that fail, hang and compute nonsense; the engine must answer for each",
    run=run,
    add_arguments=_add_arguments,
    short={"requests": 40, "cycles": 1},
)
