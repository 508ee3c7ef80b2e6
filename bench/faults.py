"""What many connections cost, and whether health checks are answered under load.

    python -m bench.faults idle              # memory and running streams with 10,000 idle clients
    python -m bench.faults health [MODEL]    # /health and /metrics while 256 streams run

In the first, server and client get a core each; in the second, they share the machine as they do
in earnest, and the questions come from a process of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import resource
from collections.abc import Callable, Sequence
from typing import cast
from urllib.request import urlopen

import uvloop

from bench.common.prober import Latencies, probing
from bench.common.process import server_process, two_cores
from bench.common.report import machine, table
from bench.common.streams import completion, run_streams
from fastovms.parts.client.http_client import Target
from fastovms.parts.load_test.command import LoadRequest

_NULL_SERVER = ("-m", "bench.null_engine.null_server", "--step", "0.02")
_SERVER = ("-m", "fastovms", "serve", "--access-log", "off", "--cache-size", "0.5")
_RESIDENT = re.compile(rb"^process_resident_memory_bytes (\S+)", re.MULTILINE)
_MIB = 1024 * 1024
_CONNECTING = 200
"""Connections that are made at a time."""


def measure_idle(num_idle: int, num_streams: int, num_tokens: int, num_runs: int) -> None:
    """The gaps between the tokens of paced streams, alone and beside idle connections, in turns."""
    _raise_file_limit(num_idle)
    server_core, client_core = two_cores()
    with (
        server_process(_NULL_SERVER, core=server_core) as (url, _),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        os.sched_setaffinity(0, {client_core})
        target = Target.from_url(f"{url}/v1")
        bodies = [completion("null", [1], num_tokens) for _ in range(num_streams)]
        alone: list[float] = []
        beside: list[float] = []
        memory: list[float] = []
        runner.run(run_streams(target, bodies))
        for _ in range(num_runs):
            before = _resident_memory(url)
            alone += _gaps(runner, target, bodies)
            idle = runner.run(_connect_idle(target, num_idle))
            try:
                beside += _gaps(runner, target, bodies)
                memory.append(_resident_memory(url) - before)
            finally:
                for transport in idle:
                    transport.abort()
            runner.run(asyncio.sleep(0.5))
    rows = [
        [name, *(f"{1000 * _quantile(gaps, q):.2f}" for q in (0.5, 0.99, 0.999)), extra]
        for name, gaps, extra in (
            ("no other", alone, "-"),
            (f"{num_idle} idle", beside, f"{max(memory) / _MIB:.1f} MiB"),
        )
    ]
    print(f"{num_streams} streams, a token every 20 ms")
    print(table(("connections", "gap p50 ms", "p99", "p99.9", "memory"), rows))


def measure_health(model: Sequence[str], num_streams: int, num_tokens: int) -> None:
    """How long the answers take, one question at a time, while every stream runs."""
    with (
        server_process((*_SERVER, "--model-name", "m", *model)) as (url, _),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        target = Target.from_url(f"{url}/v1")
        bodies = [completion("m", [5, 6, 7], num_tokens) for _ in range(num_streams)]
        latencies = runner.run(_run_after(1, target, bodies, ("/health", "/metrics")))
    rows = [
        [path, len(times), *(f"{1000 * _quantile(times, q):.1f}" for q in (0.5, 0.99, 1))]
        for path, times in latencies.items()
    ]
    print(f"{num_streams} streams")
    print(table(("path", "asked", "p50 ms", "p99", "max"), rows))


class _Idle(asyncio.Protocol):
    """Asks once, and says when it was answered."""

    def __init__(self, answered: asyncio.Future[None], request: bytes) -> None:
        self._answered = answered
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._answered.done():
            self._answered.set_result(None)


async def _connect_idle(target: Target, number: int) -> list[asyncio.Transport]:
    loop = asyncio.get_running_loop()
    request = f"GET /health HTTP/1.1\r\nHost: {target.host}\r\n\r\n".encode()

    async def connect() -> asyncio.Transport:
        answered = loop.create_future()
        transport, _ = await loop.create_connection(
            lambda: _Idle(answered, request), target.host, target.port
        )
        await answered
        return transport

    transports: list[asyncio.Transport] = []
    while len(transports) < number:
        batch = min(_CONNECTING, number - len(transports))
        transports += await asyncio.gather(*(connect() for _ in range(batch)))
    return transports


async def _run_after(
    seconds: float, target: Target, bodies: list[LoadRequest], paths: Sequence[str]
) -> Latencies:
    """Probes while the load runs, but for its first seconds, in which the streams begin."""
    load = asyncio.ensure_future(run_streams(target, bodies))
    await asyncio.sleep(seconds)
    with probing(target.host, target.port, paths) as latencies:
        await load
    return latencies


def _gaps(runner: asyncio.Runner, target: Target, bodies: list[LoadRequest]) -> list[float]:
    load = runner.run(run_streams(target, bodies))
    return [gap for timeline in load.timelines for gap in timeline.gaps]


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def _resident_memory(url: str) -> float:
    with urlopen(f"{url}/metrics") as response:
        found = _RESIDENT.search(response.read())
    if found is None:
        raise SystemExit("the server does not export its memory")
    return float(found[1])


def _raise_file_limit(num_connections: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < num_connections + 500:
        raise SystemExit(f"only {hard} the limit of open files is: try fewer connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m bench.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    idle = commands.add_parser("idle")
    idle.add_argument("-c", "--connections", type=int, default=10_000)
    idle.add_argument("-n", "--streams", type=int, default=64)
    idle.add_argument("-g", "--tokens", type=int, default=200, help="of each stream")
    idle.add_argument("-r", "--runs", type=int, default=2)
    idle.set_defaults(measure=lambda a: measure_idle(a.connections, a.streams, a.tokens, a.runs))
    health = commands.add_parser("health")
    health.add_argument("model", nargs="*", help="directory; none = the built-in demo model")
    health.add_argument("-n", "--streams", type=int, default=256)
    health.add_argument("-g", "--tokens", type=int, default=200, help="of each stream")
    health.set_defaults(measure=lambda a: measure_health(a.model, a.streams, a.tokens))
    arguments = parser.parse_args()
    measure: Callable[[argparse.Namespace], None] = arguments.measure
    print(f"{machine()}\n")
    measure(arguments)


if __name__ == "__main__":
    main()
