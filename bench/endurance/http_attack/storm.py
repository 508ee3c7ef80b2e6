"""`storm`: waves of clients that leave at every stage of their requests, over HTTP and over TLS.

They leave by FIN, by RST and by closing one side, among them slow readers, clients that drip their
request, and some that leave a TLS handshake half done. Behind each wave all books must be at zero
soon. At the end come clients that do not leave: the server must close their connections in time.
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
"""They go on without their clients."""
CANARY: Final = {**BACKGROUND, "requests": 1, "connections": 1, "bytes of bodies": 1000}
"""What the canary may take of the books at any time, besides."""

CLOSING_TIME: Final = 2.0
"""Seconds in which the books must be at zero."""
GIVE_UP: Final = 30.0
PAUSE: Final = 0.02
LENGTHS: Final = (0.2, 3.0)
"""Seconds of a wave that all clients leave at once."""
STAYING: Final = 200
"""Clients that do not leave."""
HEAD_TIMEOUT: Final = 5.0
HANDSHAKE_TIMEOUT: Final = 10.0
CREDENTIALS: Final = Path(__file__).parents[3] / "tests" / "http" / "tls"
FLAGS: Final = ("--cache-size", "0.1", "--head-timeout", str(HEAD_TIMEOUT))


class _Storm:
    """Waves of clients against one server.

    Attributes:
        num_clients, num_stuck: those that came, and those that could not leave.
        statuses: of the answers that clients have read.
        closing_times: seconds behind each wave until the books were at zero.
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
        """`besides` = what others may take of the books."""
        while num_clients > 0:
            asyncio.run(self._wave(min(wave, num_clients)))
            num_clients -= wave
            self.closing_times.append(seconds_to_zero(self._server, besides))
            self._server.check_alive()

    async def _wave(self, size: int) -> None:
        """Every other wave ends for all clients at once."""
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
    """Returns what must come back to zero. The question for the metrics takes a connection."""
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
    """Returns how long it took until the books showed no more than others may take; infinity if
    that was too long."""
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
    """Connects clients that send a beginning and stay. Returns how long it took until the server
    had closed all of them; infinity if that was too long."""
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
    """Returns how many are in its log, and shows the last one."""
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
