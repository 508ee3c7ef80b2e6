"""What the prefix cache on disk is worth after a kill -9, and what it costs while it is written.

In each round a server computes prompts that it has never seen, gets them again from memory, is
killed, loses the kernel's copies of its files, starts again and reads them from the disk. With
`--writing` streams run in turn while blocks are being written, and while there is nothing to write.

    python -m bench.warm MODEL_DIR
    python -m bench.warm MODEL_DIR --kv-cache-precision f16 u8 u4 --prompt-tokens 2000
    python -m bench.warm MODEL_DIR --writing

It exits with 1 if a prompt of 2,000 tokens or more takes longer from disk than 0.15 of what it
takes to compute, or if streams lose more than 3 %.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from bench.common.report import machine, median, ratio, table
from bench.common.streams import completion, run_streams
from bench.endurance.server import ServerUnderTest
from fastovms.parts.client.http_client import Target
from fastovms.parts.load_test.command import LoadRequest

_MODEL: Final = "model"
_TOKEN_IDS: Final = (5, 400)
_LONG: Final = 2000
"""Tokens from which on the limit below counts."""
_MAX_RATIO: Final = 0.15
_MAX_LOSS: Final = 0.03

_BACKGROUND_TOKENS: Final = 2000
"""Of the prompt that is written beside streams."""


class FirstTokens(NamedTuple):
    """Seconds to the first token of one prompt, and what it was on disk.

    Attributes:
        num_read: tokens that came from disk.
        num_bytes: of these.
    """

    cold: float
    memory: float
    disk: float
    num_read: float
    num_bytes: float


def _server(arguments: argparse.Namespace, directory: Path, *flags: str) -> ServerUnderTest:
    common = ["--model", f"{_MODEL}={arguments.model_dir}", "--no-tune"]
    common += ["--cache-size", str(arguments.cache_size), "--prefix-cache-disk-size", "16G"]
    common += ["--prefix-cache-daily-writes", "1000G", "--no-enable-prompt-lookup"]
    return ServerUnderTest([*common, *flags], directory)


def _prompt(num_tokens: int) -> list[int]:
    return [random.randint(*_TOKEN_IDS) for _ in range(num_tokens)]


def _first_token(server: ServerUnderTest, prompt: list[int]) -> float:
    load = asyncio.run(run_streams(Target.from_url(server.url), [completion(_MODEL, prompt, 1)]))
    return load.timelines[0].time_to_first_token


def drop_pages(directory: Path) -> int:
    """Has the kernel forget what is in the files of a directory, and returns their size."""
    size = 0
    for file in directory.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # what is not on the disk is not forgotten
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                size += os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
    return size


# Time to the first token


def _start(server: ServerUnderTest, settling: float) -> None:
    server.start()
    time.sleep(settling)
    _first_token(server, _prompt(64))  # what is only slow once


def measure_round(
    server: ServerUnderTest, lengths: Sequence[int], settling: float
) -> dict[int, FirstTokens]:
    """Returns the times of new prompts, by their lengths.

    Args:
        server: does not run before or after.
        settling: seconds after a start in which nobody asks; an idle server then commits some of
            its cache.
    """
    prompts = {length: _prompt(length) for length in lengths}
    try:
        _start(server, settling)
        cold = {length: _first_token(server, prompt) for length, prompt in prompts.items()}
        memory = {length: _first_token(server, prompt) for length, prompt in prompts.items()}
        server.wait_until_prefixes_are_written()
        server.kill()
        drop_pages(server.state_dir / "prefix-cache")
        _start(server, settling)
        result = {}
        for length, prompt in prompts.items():
            before = server.metrics()
            disk = _first_token(server, prompt)
            after = server.metrics()
            num_read, num_bytes = (
                after[f"prefix_cache_disk_{name}_total"] - before[f"prefix_cache_disk_{name}_total"]
                for name in ("hits", "read_bytes")
            )
            result[length] = FirstTokens(cold[length], memory[length], disk, num_read, num_bytes)
        return result
    finally:
        server.kill()


def measure_first_tokens(arguments: argparse.Namespace) -> bool:
    """Prints a table, and returns whether the goal is met."""
    rows: list[list[object]] = []
    is_met = True
    for precision in arguments.kv_cache_precision:
        rounds: defaultdict[int, list[FirstTokens]] = defaultdict(list)
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
                flags = ["--prefix-cache-write-rate", "1G"]
                flags += ["--kv-cache-precision", precision] if precision else []
                server = _server(arguments, Path(directory), *flags)
                for length, times in measure_round(
                    server, arguments.prompt_tokens, arguments.settling
                ).items():
                    rounds[length].append(times)
        for length, found in rounds.items():
            cold, memory, disk = ([one[which] for one in found] for which in range(3))
            median_ratio = median([a / b for a, b in zip(disk, cold, strict=True)])
            is_met &= length < _LONG or median_ratio <= _MAX_RATIO
            num_read, num_bytes = (sum(one[which] for one in found) for which in (3, 4))
            rows.append(
                [
                    length,
                    precision or "default",
                    *(1000 * median(times) for times in (cold, memory, disk)),
                    ratio(disk, cold),
                    ratio(memory, cold),
                    f"{num_read / len(found):.0f}",
                    num_bytes / num_read / 1000 if num_read else float("nan"),
                    f"{num_bytes / sum(disk) / 1e6:.0f}",
                ]
            )
    header = ("prompt tokens", "KV cache", "cold, ms", "memory, ms", "disk, ms", "disk / cold",
              "memory / cold", "tokens read", "kB a token", "MB/s")  # fmt: skip
    print(table(header, rows))
    return is_met


# What writing costs


def _salted(request: LoadRequest) -> LoadRequest:
    """Returns a request of whose prompt nothing is written."""
    return request._replace(body=orjson.dumps({**orjson.loads(request.body), "cache_salt": "s"}))


def measure_writing(arguments: argparse.Namespace) -> bool:
    """Prints what streams lose, and returns whether that is within its limit."""
    speeds: dict[bool, list[float]] = {False: [], True: []}
    rates = []
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        server = _server(arguments, Path(directory))
        server.start()
        try:
            target = Target.from_url(server.url)
            for number in range(2 * arguments.rounds + 2):
                is_written = number % 2 == (number // 2) % 2  # A B B A
                long = completion(_MODEL, _prompt(_BACKGROUND_TOKENS), 1)
                asyncio.run(run_streams(target, [long if is_written else _salted(long)]))
                streams = [
                    _salted(completion(_MODEL, _prompt(32), arguments.output_tokens))
                    for _ in range(arguments.streams)
                ]
                before = server.metrics()["prefix_cache_disk_written_bytes_total"]
                load = asyncio.run(run_streams(target, streams))
                written = server.metrics()["prefix_cache_disk_written_bytes_total"] - before
                server.wait_until_prefixes_are_written()
                if number >= 2:  # the first ones warm up
                    tokens = arguments.output_tokens * arguments.streams
                    speeds[is_written].append(tokens / load.seconds)
                    if is_written:
                        rates.append(written / load.seconds / 1e6)
        finally:
            server.kill()
    with_, without = speeds[True], speeds[False]
    loss = 1 - median([a / b for a, b in zip(with_, without, strict=True)])
    header = ("streams", "tokens/s beside writing", "without", "ratio", "MB/s written")
    print(table(header, [[arguments.streams, median(with_), median(without),
                          ratio(with_, without), median(rates)]]))  # fmt: skip
    print(f"streams lose {100 * loss:.1f} %")
    return loss <= _MAX_LOSS


def main() -> int:
    """Measures, and returns the exit code."""
    parser = argparse.ArgumentParser("python -m bench.warm", description=__doc__.split("\n")[0])
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("-p", "--prompt-tokens", type=int, nargs="+", default=(500, 2000, 8000))
    parser.add_argument("-k", "--kv-cache-precision", nargs="+", default=[""])
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("--cache-size", type=float, default=1.0, help="of the KV cache, in GB")
    parser.add_argument("--settling", type=float, default=3.0, help="seconds behind each start")
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: as TMPDIR")
    parser.add_argument("--writing", action="store_true", help="measure streams beside writing")
    parser.add_argument("--streams", type=int, default=4, help="with --writing")
    parser.add_argument("--output-tokens", type=int, default=256, help="with --writing")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    print(machine(), end="\n\n")
    measure = measure_writing if arguments.writing else measure_first_tokens
    return 0 if measure(arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
