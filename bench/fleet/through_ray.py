"""`ray`: time to the first token and tokens a second through Ray Serve's proxy and replicas, and in
turn through Envoy before the servers of the same replicas, and the memory of Ray's processes."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final
from urllib.request import urlopen

import numpy as np
import uvloop
import yaml

from bench.common.process import free_port, listening_port
from bench.common.report import median
from bench.common.streams import completion, run_streams
from bench.figures.command import Command
from bench.figures.figure import Figure
from bench.fleet.fleet import balanced
from fastovms.parts.client.http_client import Target
from fastovms.parts.load_test.command import RANDOM_TOKEN_IDS
from fastovms.parts.load_test.report import Load

_YAML: Final = Path(__file__).parents[2] / "deploy" / "ray" / "serve.yaml"
_RAY_PROCESSES: Final = {
    "ray::ServeReplica": "actor of a replica, beside its server",
    "ray::ProxyActor": "proxy of a node",
    "ray::ServeController": "controller of the cluster",
}
_STREAMS: Final = (1, 8, 32)
_PROMPT_TOKENS: Final = 32
_OUTPUT_TOKENS: Final = 100
_PATIENCE: Final = 180.0


def _config(port: int, num_replicas: int, name: str) -> str:
    """Returns the YAML of `deploy/ray` for a number of replicas with one thread each."""
    config = yaml.safe_load(_YAML.read_text())
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    [application] = config["applications"]
    application["args"]["arguments"] += ["--cache-size", "0.2", "--model-name", name]
    [deployment] = application["deployments"]
    del deployment["autoscaling_config"]
    deployment["num_replicas"] = num_replicas
    deployment["ray_actor_options"]["num_cpus"] = 0.5
    return str(yaml.safe_dump(config))


@contextmanager
def _ray(num_replicas: int, name: str) -> Iterator[tuple[str, list[str]]]:
    """Runs `serve run`, and yields the URLs of Ray's proxy and of the replicas' servers."""
    port = free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(_config(port, num_replicas, name))
        file.flush()
        command = [sys.executable, "-m", "ray.serve.scripts", "run", file.name]
        process = subprocess.Popen(command, stdout=sys.stderr, stdin=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            yield url, _wait_for_servers(process, url, num_replicas, name)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def _wait_for_servers(
    process: subprocess.Popen[bytes], url: str, num_replicas: int, name: str
) -> list[str]:
    """Raises SystemExit: they do not come."""
    deadline = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        ports = {
            listening_port(pid) for pid, line in _processes() if f"--model-name {name}" in line
        }
        urls = [f"http://127.0.0.1:{port}" for port in ports - {None}]
        if len(urls) == num_replicas and all(_answers(each) for each in (url, *urls)):
            return urls
        time.sleep(0.5)
    raise SystemExit("Ray has not started the replicas")


def _answers(url: str) -> bool:
    try:
        with urlopen(f"{url}/ready", timeout=5):
            return True
    except OSError:
        return False


def _processes() -> Iterator[tuple[int, str]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield int(path.parent.name), path.read_text().replace("\0", " ")
        except OSError:
            continue


def _private_megabytes(pid: int) -> float:
    """Returns what would be free if the process ended."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    lines = [line for line in text.splitlines() if line.startswith("Private")]
    return sum(int(line.split()[1]) for line in lines) / 1024


def _compare(
    urls: Sequence[str], name: str, num_streams: int, num_rounds: int, random: Random
) -> list[Figure]:
    """Asks both in turn, in as many rounds as asked for."""
    loads: tuple[list[Load], ...] = tuple([] for _ in urls)
    for number in range(-1, num_rounds):
        for url, measured in zip(urls, loads, strict=True):
            requests = [
                completion(name, random.choices(RANDOM_TOKEN_IDS, k=_PROMPT_TOKENS), _OUTPUT_TOKENS)
                for _ in range(num_streams)
            ]
            load = uvloop.run(run_streams(Target.from_url(url), requests))
            if number >= 0:  # the first ones warm up
                measured.append(load)
    speeds = [[load.tokens_per_second for load in measured] for measured in loads]
    firsts = [
        [1000 * stream.time_to_first_token for load in measured for stream in load.timelines]
        for measured in loads
    ]
    at_once = f"{num_streams} stream{'s' if num_streams > 1 else ''}"
    ratios = [ray / envoy for envoy, ray in zip(*speeds, strict=True)]
    return [
        Figure(f"{at_once}: first token, p50, Envoy", median(firsts[0]), "ms"),
        Figure(f"{at_once}: first token, p50, Ray", median(firsts[1]), "ms"),
        Figure(f"{at_once}: first token, p99, Envoy", float(np.percentile(firsts[0], 99)), "ms"),
        Figure(f"{at_once}: first token, p99, Ray", float(np.percentile(firsts[1], 99)), "ms"),
        Figure(f"{at_once}: tokens a second, Envoy", median(speeds[0])),
        Figure(f"{at_once}: tokens a second, Ray", median(speeds[1])),
        Figure(f"{at_once}: tokens a second, Ray / Envoy", median(ratios)),
    ]


def run(options: argparse.Namespace) -> Sequence[Figure]:
    name, random = f"bench-{os.getpid()}", Random(options.seed)
    figures: list[Figure] = []
    with _ray(options.replicas, name) as (ray, servers), balanced(servers) as (envoy, _):
        for num_streams in _STREAMS:
            figures += _compare([envoy, ray], name, num_streams, options.rounds, random)
        for prefix, what in _RAY_PROCESSES.items():
            own = [_private_megabytes(pid) for pid, line in _processes() if line.startswith(prefix)]
            figures.append(Figure(f"memory of its own: {what}", max(own), "MiB"))
    return figures


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)


COMMAND = Command(
    help="compares Ray Serve with Envoy before the servers of the same replicas",
    run=run,
    add_arguments=_add_arguments,
    short=None,
)
