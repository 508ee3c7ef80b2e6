"""`storm`: waves of clients that disconnect at every stage of their requests, over HTTP and TLS.

They disconnect by FIN, by RST or by closing one direction. Some read slowly, some send their
request byte by byte, and some abort a TLS handshake. After each wave, the server's counts of
connections, requests and blocks must soon be zero. At the end, clients send an incomplete request
and stay: the server must close their connections in time.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import socket
import ssl
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.endurance.canary import Sightings, canary
from bench.endurance.full_caches import fill_kv_cache
from bench.endurance.http_attack.leavers import (
    HOST,
    STAGES,
    TLS_STAGES,
    WAYS,
    Leaver,
    Stage,
    client_hello,
    visit,
)
from bench.endurance.server import MODEL, ServerUnderTest, server_under_test
from bench.figures.command import Command
from bench.figures.figure import Figure

BACKGROUND: Final = {"responses in the background": math.inf}
"""Requests that continue without their clients."""
CANARY: Final = {**BACKGROUND, "requests": 1, "connections": 1, "bytes of bodies": 1000}
"""The amounts that the canary itself may use."""

CLOSING_TIME: Final = 2.0
"""The seconds within which the counts must be zero."""
GIVE_UP: Final = 30.0
PAUSE: Final = 0.02
LENGTHS: Final = (0.2, 3.0)
"""The seconds after which all clients of a wave disconnect at once."""
STAYING: Final = 200
"""The number of clients that stay."""
HEAD_TIMEOUT: Final = 5.0
HANDSHAKE_TIMEOUT: Final = 10.0
CREDENTIALS: Final = Path(__file__).parents[3] / "tests" / "http" / "tls"
FLAGS: Final = ("--cache-size", "0.1", "--head-timeout", str(HEAD_TIMEOUT))


class _Storm:
    """Waves of clients against one server.

    Attributes:
        num_clients, num_stuck: the clients that connected, and those that could not disconnect.
        statuses: the statuses of the responses that clients have read.
        closing_times: after each wave, the seconds until the counts were zero.
    """

    def __init__(
        self,
        server: ServerUnderTest,
        stages: Sequence[Stage],
        rng: random.Random,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._server = server
        self._stages = stages
        self._rng = rng
        self._context = context
        self._num_waves = 0
        self.num_clients = 0
        self.num_stuck = 0
        self.statuses: Counter[int] = Counter()
        self.closing_times: list[float] = []

    def run(self, num_clients: int, wave: int, *, besides: Mapping[str, float]) -> None:
        """Runs the waves. `besides` has the amounts that other clients may use."""
        while num_clients > 0:
            asyncio.run(self._wave(min(wave, num_clients)))
            num_clients -= wave
            self.closing_times.append(seconds_to_zero(self._server, besides))
            self._server.check_alive()

    async def _wave(self, size: int) -> None:
        """Runs a wave. In every other wave, all clients disconnect at the same time."""
        rng, port = self._rng, self._server.port
        until = None
        self._num_waves += 1
        if self._num_waves % 2 == 0:
            until = asyncio.get_running_loop().time() + rng.uniform(*LENGTHS)
        visits = []
        for _ in range(size):
            leaver = Leaver(port, random.Random(rng.random()), self._context, self.statuses)
            visits.append(visit(leaver, rng.choice(self._stages), rng.choice(WAYS), until))
        results = await asyncio.gather(*visits)
        self.num_clients += size
        self.num_stuck += results.count(False)


def books(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the counts that must return to zero. The request for the metrics uses a connection
    itself."""
    requests = metrics["num_requests_running"] + metrics["num_requests_waiting"]
    background = metrics["background_responses"]
    return {
        "requests": requests - background,
        "responses in the background": background,
        "connections": metrics["http_connections"] - 1,
        "handshakes": metrics["http_handshakes"],
        "bytes of bodies": metrics["http_buffered_body_bytes"],
    }


def seconds_to_zero(server: ServerUnderTest, besides: Mapping[str, float]) -> float:
    """Returns the seconds until the counts were at most those of other clients; infinity after the
    limit."""
    start = time.monotonic()
    while True:
        held = books(server.metrics())
        asked = time.monotonic() - start
        left = {name: count for name, count in held.items() if count > besides.get(name, 0)}
        if not left:
            return asked
        if asked > GIVE_UP:
            print(f"the books are not at zero: {left}")
            return math.inf
        time.sleep(PAUSE)


def seconds_to_closed(server: ServerUnderTest, beginning: bytes) -> float:
    """Connects clients that send an incomplete request and stay. Returns the seconds until the
    server has closed all of them; infinity after the limit."""
    with ExitStack() as stack:
        start = time.monotonic()
        clients = []
        for _ in range(STAYING):
            client = stack.enter_context(socket.create_connection((HOST, server.port)))
            client.sendall(beginning)
            clients.append(client)
        for client in clients:
            client.settimeout(max(start + GIVE_UP - time.monotonic(), 0.01))
            try:
                while client.recv(4096):
                    pass
            except ConnectionError:
                pass
            except TimeoutError:
                return math.inf
        return time.monotonic() - start


def count_tracebacks(server: ServerUnderTest) -> int:
    """Returns the number of tracebacks in the log, and prints the last one."""
    num_tracebacks = server.log.read_text(errors="replace").count("Traceback")
    if num_tracebacks:
        print(server.tail)
    return num_tracebacks


def run(options: argparse.Namespace) -> Sequence[Figure]:
    rng = random.Random(options.seed)
    with server_under_test(*FLAGS) as server:
        # Its pages become resident as blocks are first used: a small wave touches few of them.
        fill_kv_cache(server.url)
        plain = _Storm(server, STAGES, rng)
        plain.run(options.wave, options.wave, besides=BACKGROUND)  # warms it up
        memory = server.resident_memory()
        descriptors = server.num_descriptors()
        with canary(server.url, MODEL) as sightings:
            plain.run(options.clients, options.wave, besides=CANARY)
            slow_heads = seconds_to_closed(server, b"POST /v1/completions HTTP/1.1\r\nHost: ")
        at_the_end = seconds_to_zero(server, {})
        growth = server.resident_memory() - memory
        num_tracebacks = count_tracebacks(server)
        more_descriptors = server.num_descriptors() - descriptors
    certificate = CREDENTIALS / "first.crt"
    context = ssl.create_default_context(cafile=certificate)
    flags = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(CREDENTIALS / "first.key"))
    with server_under_test(*FLAGS, *flags, context=context) as server:
        tls = _Storm(server, TLS_STAGES, rng, context)
        tls.run(options.tls_clients, options.wave // 2, besides={})
        half_handshakes = 0.0
        if options.half_handshakes:
            half_handshakes = seconds_to_closed(server, client_hello())
        num_tracebacks += count_tracebacks(server)
    figures = [
        *_figures("HTTP", plain),
        *_canary_figures(sightings),
        Figure("books at zero without the canary, at the end", at_the_end, "s", at_most=2),
        Figure("resident memory, end over first wave", growth, "MiB", at_most=150),
        Figure("descriptors, end over first wave", more_descriptors, at_most=2),
        Figure(
            f"{STAYING} clients with a head that does not end closed",
            slow_heads,
            "s",
            at_most=HEAD_TIMEOUT + CLOSING_TIME,
        ),
        *_figures("TLS", tls),
        Figure("tracebacks in the logs", num_tracebacks, at_most=0),
    ]
    if options.half_handshakes:
        figures.append(
            Figure(
                f"{STAYING} clients with half a handshake closed",
                half_handshakes,
                "s",
                at_most=HANDSHAKE_TIMEOUT + CLOSING_TIME,
            )
        )
    return figures


def _figures(name: str, storm: _Storm) -> list[Figure]:
    num_bad = sum(
        count for status, count in storm.statuses.items() if status >= 500 and status != 503
    )
    return [
        Figure(f"clients over {name}", storm.num_clients),
        Figure(f"answers 200 over {name}", storm.statuses[200], at_least=1),
        Figure(f"answers 5xx over {name}, 503 apart", num_bad, at_most=0),
        Figure(f"clients over {name} that could not leave", storm.num_stuck, at_most=0),
        Figure(
            f"books at zero behind a wave over {name}, longest",
            max(storm.closing_times),
            "s",
            at_most=CLOSING_TIME,
        ),
    ]


def _canary_figures(sightings: Sightings) -> list[Figure]:
    return [
        Figure("streams of the canary", sightings.num_streams, at_least=1),
        Figure("streams of the canary that failed", sightings.num_failures, at_most=0),
        Figure("longest gap in a stream of the canary", sightings.longest_gap, "s", at_most=5),
    ]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=30_000, help="over HTTP")
    parser.add_argument("--tls-clients", type=int, default=10_000, help="over TLS")
    parser.add_argument("--wave", type=int, default=500, help="clients at a time")
    parser.add_argument(
        "--half-handshakes",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait for those that leave a handshake half done and stay",
    )


COMMAND = Command(
    help="sends clients that leave at every stage, also over TLS; the books must come back to zero",
    run=run,
    add_arguments=_add_arguments,
    short={"clients": 100, "tls_clients": 50, "wave": 50, "half_handshakes": False},
)
