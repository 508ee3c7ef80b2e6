"""`soak`: sends the requests of half a day in less time, and measures what they leave behind."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from re import compile as pattern
from statistics import linear_regression, quantiles
from typing import Final, NamedTuple

import uvloop

from bench.endurance.full_caches import fill_caches
from bench.endurance.http_attack.body_judge import judge_body
from bench.endurance.http_attack.connection import AttackConnection
from bench.endurance.load.soak_requests import REQUESTS_AN_HOUR, SoakMix, SoakRequest
from bench.endurance.server import ServerUnderTest, server_under_test
from bench.endurance.tally import Tally
from bench.figures.command import Command
from bench.figures.figure import Figure

PLOT: Final = Path(__file__).parents[3] / "docs" / "soak.svg"
_HOST: Final = "127.0.0.1"
_PATIENCE: Final = 60.0
_LEAVES_AFTER: Final = 0.05
_WARM_UP: Final = 0.1
"""The share of the time at the beginning that slopes ignore."""

_ID: Final = pattern(rb'"id":"(resp_?[\w-]+)"')
_NUM_IDS: Final = 200


class Sample(NamedTuple):
    """The resources of the process at a time, in hours of the simulated day, and the latencies in
    seconds of the requests since the sample before."""

    hour: float
    memory: float
    descriptors: int
    threads: int
    latencies: Sequence[float]


@dataclass(slots=True)
class Soak:
    """A run against one server."""

    server: ServerUnderTest
    options: argparse.Namespace
    tally: Tally
    samples: list[Sample] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    _free: list[AttackConnection] = field(default_factory=list)
    _latencies: list[float] = field(default_factory=list)
    _ids: deque[str] = field(default_factory=lambda: deque(maxlen=_NUM_IDS))
    _is_over: bool = False

    async def run(self) -> None:
        """Sends every request at its time, or as soon as a client is free after it."""
        mix = SoakMix(self.options.seed)
        arrivals = mix.arrivals(self.options.hours)
        loop = asyncio.get_running_loop()
        await self._begin()
        start = loop.time()
        sampler = asyncio.create_task(self._sample(start))
        clients = asyncio.Semaphore(self.options.clients)

        async def ask(index: int, request: SoakRequest) -> None:
            try:
                await self._ask(index, request)
            finally:
                clients.release()

        async with asyncio.TaskGroup() as group:
            for index, arrival in enumerate(arrivals):
                delay = start + arrival * self.options.seconds - loop.time()
                if delay > 0:
                    await asyncio.sleep(delay)
                await clients.acquire()
                group.create_task(ask(index, mix.make()))
        self._is_over = True
        await sampler
        for connection in self._free:
            connection.abort()

    async def _begin(self) -> None:
        """Creates a response to which later requests refer."""
        body = {"model": "demo_model", "input": "Hello", "max_output_tokens": 4}
        await self._ask(-1, SoakRequest("response", "/v1/responses", body))

    async def _ask(self, index: int, request: SoakRequest) -> None:
        connection = await self._connection()
        id = Random(index).choice(self._ids) if self._ids else "resp_none"
        sent = request.encode(id)
        start = time.perf_counter()
        connection.write(sent)
        if request.leaves:
            await connection.wait(1, _LEAVES_AFTER)
            connection.abort()
        fault = "" if request.leaves else await self._judge(connection, request)
        self.tally.num_sent += 1
        self.kinds[request.kind] += 1
        self._latencies.append(time.perf_counter() - start)
        if fault:
            self.tally.fail(index, f"{request.kind}: {fault}", sent)
        if not connection.is_closing:
            self._free.append(connection)

    async def _connection(self) -> AttackConnection:
        while self._free:
            connection = self._free.pop()
            if not connection.is_closing:
                connection.answers.clear()
                return connection
        return await AttackConnection.open(_HOST, self.server.port)

    async def _judge(self, connection: AttackConnection, request: SoakRequest) -> str:
        answer = await connection.first_answer(_PATIENCE)
        if isinstance(answer, str):
            return answer
        self.tally.statuses[answer.status] += 1
        if request.path == "/v1/responses" and (found := _ID.search(answer.body[:500])):
            self._ids.append(found[1].decode())
        if answer.status != request.status:
            return f"status {answer.status}: {answer.body[:300]!r}"
        return "" if request.kind in ("metrics", "health") else judge_body(request.path, answer)

    async def _sample(self, start: float) -> None:
        options, loop = self.options, asyncio.get_running_loop()
        while not self._is_over:
            await asyncio.sleep(options.seconds / options.samples)
            latencies, self._latencies = self._latencies, []
            self.samples.append(
                Sample(
                    hour=(loop.time() - start) / options.seconds * options.hours,
                    memory=self.server.resident_memory(),
                    descriptors=self.server.num_descriptors(),
                    threads=self.server.num_threads(),
                    latencies=latencies,
                )
            )


def run(options: argparse.Namespace) -> Sequence[Figure]:
    """Sends the requests, plots the samples and returns the figures."""
    with server_under_test("--cache-size", "0.1") as server:
        if not options.short:
            fill_caches(server.url)
        soak = Soak(server, options, Tally(options.seed))
        uvloop.run(soak.run())
        server.check_alive()
    plot = PLOT if options.record else options.plot
    if plot is not None:
        from bench.endurance.load.soak_plot import draw  # matplotlib is in an extra of its own

        draw(soak.samples, plot)
    return _figures(soak)


def _figures(soak: Soak) -> list[Figure]:
    options, samples, tally = soak.options, soak.samples, soak.tally
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(soak.kinds.items())))
    settled = samples[int(len(samples) * _WARM_UP) :]
    tenth = max(1, len(samples) // 10)
    is_full = not options.short
    return [
        Figure("requests", tally.num_sent, at_least=round(options.hours * REQUESTS_AN_HOUR)),
        Figure("hours of which these are", options.hours, "h"),
        Figure("answers against the rules", tally.num_failures, at_most=0),
        Figure("memory after a tenth", settled[0].memory, "MiB"),
        Figure("memory at the end", settled[-1].memory, "MiB"),
        Figure(
            "slope of memory after a tenth",
            slope([(sample.hour, sample.memory) for sample in settled]),
            "MiB an hour",
            at_most=1 if is_full else None,
        ),
        Figure(
            "slope of descriptors after a tenth",
            slope([(sample.hour, sample.descriptors) for sample in settled]),
            "an hour",
            at_most=1 if is_full else None,
        ),
        Figure("threads at the end", settled[-1].threads),
        Figure("median latency in the first tenth", median_of(samples[:tenth]), "s"),
        Figure("median latency in the last tenth", median_of(samples[-tenth:]), "s"),
        Figure("longest latency", max(max(each.latencies, default=0) for each in samples), "s"),
    ]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Returns the slope of a linear fit."""
    if len(points) < 2:
        return float("nan")
    return linear_regression([x for x, _ in points], [y for _, y in points]).slope


def median_of(samples: Sequence[Sample]) -> float:
    """Returns the median latency of some samples in seconds; 0 if there was no answer."""
    latencies = [seconds for sample in samples for seconds in sample.latencies]
    return quantiles(latencies, n=2)[0] if len(latencies) > 1 else sum(latencies)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hours", type=float, default=12.0, help="whose requests are sent")
    parser.add_argument("--seconds", type=float, default=1500.0, help="in which they are")
    parser.add_argument("--clients", type=int, default=64, help="requests at a time, at most")
    parser.add_argument("--samples", type=int, default=300, help="of memory and so on")
    parser.add_argument("--plot", type=Path, help=f"SVG file to draw; --record draws {PLOT.name}")


COMMAND: Final = Command(
    "sends half a day's requests, closer together, and watches what they leave behind",
    run,
    _add_arguments,
    {"hours": 0.1, "seconds": 8.0, "samples": 20},
)
