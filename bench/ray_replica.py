"""What Ray Serve adds to a server: time to the first token and tokens a second through Ray's proxy
and a replica against the same server asked directly, in turn, and the memory of Ray's processes.

python -m bench.ray_replica
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

import ray
from ray import serve

from bench.client import Load, Target, run_load
from bench.process import free_port, listening_port
from bench.report import machine, ratio, table
from fastovms.config import DEMO_MODEL
from fastovms.ray_serve.application import build

NUM_TOKENS = 100
RAY_PROCESSES = (
    "ray::ServeReplica",
    "ray::ProxyActor",
    "ray::ServeController",
    "raylet",
    "gcs_ser",
)


def processes() -> Iterator[tuple[int, str]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text().replace("\0", " ")
        except OSError:
            continue
        yield int(path.parent.name), command


def server_port(name: str) -> int:
    """That of the replica's server, behind Ray."""
    for pid, command in processes():
        if f"--model-name {name}" in command and (port := listening_port(pid)):
            return port
    raise SystemExit("there is no server")


def private_megabytes(pid: int) -> float:
    """What would be free if the process ended."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    lines = [line for line in text.splitlines() if line.startswith("Private")]
    return sum(int(line.split()[1]) for line in lines) / 1024


async def measure(target: Target, name: str, num_streams: int) -> Load:
    body: dict[str, object] = {
        "model": name,
        "prompt": "Once upon a time",
        "max_tokens": NUM_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    return await run_load(target, [body] * num_streams)


async def compare(
    paths: list[Target], name: str, num_streams: int, num_rounds: int
) -> list[object]:
    """Returns a row: both ways in turn, as many rounds as asked for."""
    speeds: list[list[float]] = [[], []]
    firsts: list[list[float]] = [[], []]
    medians: list[list[float]] = [[], []]
    for _ in range(num_rounds):
        for way, target in enumerate(paths):
            load = await measure(target, name, num_streams)
            times = [timeline.time_to_first_token * 1000 for timeline in load.timelines]
            speeds[way].append(load.tokens_per_second)
            firsts[way] += times
            medians[way].append(median(times))
    p99 = [quantiles(times, n=100)[98] for times in firsts]
    return [
        num_streams,
        median(firsts[0]),
        median(firsts[1]),
        p99[0],
        p99[1],
        ratio(medians[1], medians[0]),
        median(speeds[0]),
        median(speeds[1]),
        ratio(speeds[1], speeds[0]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    port, name = free_port(), f"bench-{os.getpid()}"
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
        arguments = ["--cache-size", "0.5", "--no-enable-store", "--access-log", "off"]
        args = {"model": str(DEMO_MODEL), "arguments": [*arguments, "--model-name", name]}
        serve.run(build(args), name="bench")
        urls = [f"http://127.0.0.1:{each}/v1" for each in (server_port(name), port)]
        paths = [Target.from_url(url) for url in urls]
        asyncio.run(measure(paths[1], name, 8))
        rows = [asyncio.run(compare(paths, name, num, rounds)) for num in (1, 8, 32)]
        memory = [
            (prefix.removeprefix("ray::"), private_megabytes(pid))
            for prefix in RAY_PROCESSES
            for pid, command in processes()
            if command.startswith(prefix) or command.partition(" ")[0].endswith(f"/{prefix}")
        ]
    finally:
        serve.shutdown()
        ray.shutdown()
    print(f"{machine()}, load {os.getloadavg()[0]:.0f}\n")
    first, ways = "first token, ms:", ("direct", "Ray")
    header = ["streams", *(f"{first} {way}" for way in ways), *(f"p99: {way}" for way in ways)]
    speed = [*(f"tokens/s: {way}" for way in ways), "Ray / direct"]
    print(table([*header, "Ray / direct", *speed], rows))
    print(table(["process", "memory of its own, MB"], memory))


if __name__ == "__main__":
    main()
