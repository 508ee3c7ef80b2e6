"""`bodies`: sends mutated bodies to every endpoint while a canary streams."""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import uvloop

from bench.endurance.body_attack.api_bodies import Bodies, BodyRequest, all_endpoints
from bench.endurance.canary import Sightings, canary
from bench.endurance.full_caches import fill_caches
from bench.endurance.http_attack.body_judge import judge_body
from bench.endurance.http_attack.connection import AttackConnection
from bench.endurance.own_stalls import own_stalls
from bench.endurance.server import MODEL, ServerUnderTest, server_under_test
from bench.endurance.tally import Budget, Tally, spend_after_warm_up, work_through
from bench.figures.command import Command
from bench.figures.figure import Figure
from fastovms.server_config import DEMO_MODEL

_HOST: Final = "127.0.0.1"
_DEADLINE: Final = 5.0
"""The seconds within which each body must be answered."""

_PATIENCE: Final = 60.0
"""The seconds after which a request counts as hanging."""


_MAX_NEW_TOKENS: Final = 16
_FLAGS: Final = ("--cache-size", "0.1", "--max-model-len", "256", "--state-max-size", "64M")
_ID: Final = re.compile(rb'"id":"((?:resp|conv)_?[\w-]+)"')
_NUM_IDS: Final = 50


def run(options: argparse.Namespace) -> Sequence[Figure]:
    """Sends the bodies and returns the figures."""
    models = ("--model", f"{MODEL}={options.model}") if options.model else ()
    with (
        _short_by_default(Path(options.model or DEMO_MODEL)) as defaults,
        server_under_test(*_FLAGS, "--generation-config", defaults, *models) as server,
    ):
        if not options.short:
            fill_caches(server.url)
        with canary(server.url, MODEL) as sightings:
            attack = _Attack(server, options)
            uvloop.run(attack.run())
        time.sleep(_DEADLINE)
        server.check_alive()
        return attack.figures(sightings)


@contextmanager
def _short_by_default(model: Path) -> Iterator[str]:
    """Yields a copy of the model directory whose default length of answers is short, so that
    requests without a limit do not fill the whole context."""
    defaults = json.loads((model / "generation_config.json").read_text())
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "generation_config.json"
        path.write_text(json.dumps({**defaults, "max_new_tokens": _MAX_NEW_TOKENS}))
        yield directory


class _Attack:
    """The bodies of one run."""

    def __init__(self, server: ServerUnderTest, options: argparse.Namespace) -> None:
        self._server = server
        self._options = options
        self._tally = Tally(options.seed)
        self._bodies = Bodies(options.seed, all_endpoints())
        self._ids: deque[str] = deque(["resp_none"], maxlen=_NUM_IDS)
        self._num_descriptors = server.num_descriptors()
        self._base_memory = 0.0
        self._seconds = 0.0
        self._num_bytes = 0
        self._longest_own_stall = 0.0

    async def run(self) -> None:
        options = self._options
        budget = Budget(options.first, options.count, options.seconds, self._tally)
        async with own_stalls() as stalls:
            self._seconds = await spend_after_warm_up(
                budget, self._send_all, options.clients, self._note_memory
            )
        self._longest_own_stall = stalls.longest

    def _note_memory(self) -> None:
        self._base_memory = self._server.resident_memory()

    async def _send_all(self, budget: Budget) -> None:
        """Sends bodies one after another over one connection until the server closes it."""
        connection = await AttackConnection.open(_HOST, self._server.port)

        async def send(index: int) -> None:
            nonlocal connection
            if connection.closed or connection.is_closing:
                connection = await AttackConnection.open(_HOST, self._server.port)
            request = self._bodies.make(index)
            fault = await self._ask(connection, request, index)
            if fault:
                self._tally.fail(index, f"{request.path}: {fault}", request.body)

        await work_through(budget, send)
        connection.abort()

    async def _ask(self, connection: AttackConnection, request: BodyRequest, index: int) -> str:
        """Returns the fault of an answer, or None."""
        path = request.path.replace("{id}", Random(index).choice(self._ids))
        connection.answers.clear()
        start = time.perf_counter()
        connection.write(
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (path.encode(), len(request.body), request.body)
        )
        answer = await connection.first_answer(_PATIENCE)
        seconds = time.perf_counter() - start
        self._tally.num_sent += 1
        self._num_bytes += len(request.body)
        self._tally.slowest = max(self._tally.slowest, seconds)
        if isinstance(answer, str):
            return answer
        self._tally.statuses[answer.status] += 1
        if answer.status == 200 and (found := _ID.search(answer.body[:500])):
            self._ids.append(found[1].decode())
        if seconds > _DEADLINE:
            return f"an answer after {seconds:.1f} s, with status {answer.status}"
        return judge_body(path, answer)

    def figures(self, sightings: Sightings) -> list[Figure]:
        options, tally, server = self._options, self._tally, self._server
        tally.print_statuses()
        at_least = options.count if not options.short else 500
        overload = tally.statuses[429] + tally.statuses[503]
        return [
            Figure("bodies", tally.num_sent, at_least=at_least),
            Figure("bodies a second", tally.num_sent / self._seconds),
            Figure("size of all bodies", self._num_bytes / 2**20, "MiB"),
            Figure("answers against the rules", tally.num_failures, at_most=0),
            Figure("refused as overload", 100 * overload / tally.num_sent, "%", at_most=1),
            Figure("slowest answer", tally.slowest, "s", at_most=_DEADLINE),
            Figure("longest stall of the attacking process itself", self._longest_own_stall, "s"),
            Figure(
                "longest stall by the server's own metric",
                server.metrics()["loop_longest_stall_seconds"],
                "s",
            ),
            Figure("canary: longest gap", sightings.longest_gap, "s", at_most=_DEADLINE),
            Figure("canary: longest time to a first token", sightings.longest_first, "s"),
            Figure("canary: streams that failed", sightings.num_failures, at_most=0),
            Figure("canary: streams", sightings.num_streams, at_least=1),
            Figure("memory after a tenth", self._base_memory, "MiB"),
            Figure(
                "memory after it, over that after a tenth",
                server.resident_memory() - self._base_memory,
                "MiB",
                at_most=None if options.short else 64,
            ),
            Figure("descriptors left", server.num_descriptors() - self._num_descriptors, at_most=5),
        ]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=1_000_000, help="bodies to send")
    parser.add_argument("--seconds", type=float, default=7200.0, help="after which it ends anyway")
    parser.add_argument("--clients", type=int, default=32, help="connections at a time")
    parser.add_argument("--first", type=int, default=0, help="index of the first body")
    parser.add_argument("--model", default="", help="directory of a model to serve instead")


COMMAND: Final = Command(
    "sends mutated bodies to every endpoint of both dialects while a canary streams",
    run,
    _add_arguments,
    {"count": 10_000, "seconds": 10.0},
)
