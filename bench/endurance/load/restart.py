"""`restart`: reloads and restarts a server under load. No request may be lost or refused.

The listening socket stays open between two processes, as with a systemd socket unit. wrk keeps 64
connections busy; openai clients, which do not retry, send requests with pauses.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.endurance.load.activated import ACTIVATOR
from bench.endurance.load.openai_load import openai_load
from bench.endurance.load.wrk_load import find_wrk, wrk_load
from bench.endurance.server import MODEL, ServerUnderTest
from bench.figures.command import Command
from bench.figures.figure import Figure
from fastovms.config import HttpConfig

BACKLOG: Final = 4096
RELOADS: Final = 3
"""The number of SIGHUPs between two restarts."""
DRAIN_TIMEOUT: Final = HttpConfig().drain_timeout
SHOWN_FAILURES: Final = 5


class _Restarts:
    """Restarts a server repeatedly at random moments.

    Attributes:
        stop_seconds: the seconds from each SIGTERM to the end of the process.
    """

    def __init__(self, server: ServerUnderTest, rng: random.Random, serving: float) -> None:
        self._server = server
        self._rng = rng
        self._serving = serving
        self.stop_seconds: list[float] = []

    def run(self, count: int) -> None:
        """Runs the restarts. Raises SystemExit if a process exits with another status than 0."""
        for _ in range(count):
            for _ in range(RELOADS):
                self._serve()
                self._server.signal(signal.SIGHUP)
            self._serve()
            start = time.monotonic()
            exit_code = self._server.stop()
            if exit_code != 0:
                raise SystemExit(f"SIGTERM led to exit code {exit_code}\n{self._server.tail}")
            self.stop_seconds.append(time.monotonic() - start)
            self._server.start()
        time.sleep(self._serving)

    def _serve(self) -> None:
        time.sleep(self._rng.uniform(0.5, 1.5) * self._serving / (RELOADS + 1))


def run(options: argparse.Namespace) -> Sequence[Figure]:
    if shutil.which(ACTIVATOR) is None:
        print(f"{ACTIVATOR} is missing (apt-get install systemd): the server is started directly")
    with (
        tempfile.TemporaryDirectory(prefix="fastovms-endurance-") as directory,
        socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener,
    ):
        fd = listener.fileno()
        server = ServerUnderTest(
            (),
            Path(directory),
            program=("-m", "bench.endurance.load.activated", str(fd)),
            pass_fds=(fd,),
            port=listener.getsockname()[1],
        )
        server.start()
        try:
            return _measure(server, options)
        finally:
            server.kill()


def _measure(server: ServerUnderTest, options: argparse.Namespace) -> Sequence[Figure]:
    restarts = _Restarts(server, random.Random(options.seed), options.serving)
    figures: list[Figure] = []
    if find_wrk() is None:
        print("wrk is missing (apt-get install wrk): openai clients alone must do")
    else:
        with wrk_load(server.url, MODEL) as wrk:
            restarts.run(options.restarts)
        figures += [
            Figure("answers to wrk", wrk.num_answers, at_least=options.requests),
            Figure("requests of wrk refused", wrk.num_refused, at_most=0),
            Figure("requests of wrk lost", wrk.num_lost, at_most=0),
            Figure("longest answer to wrk", wrk.longest / 1000, "s"),
        ]
    with openai_load(server.url, MODEL, options.seed) as openai:
        restarts.run(options.restarts)
    for failure in openai.failures[:SHOWN_FAILURES]:
        print(failure, file=sys.stderr)
    return [
        *figures,
        Figure("answers to openai clients", openai.num_answers, at_least=options.requests),
        Figure("requests of openai clients that failed", len(openai.failures), at_most=0),
        Figure("longest answer to an openai client", openai.longest, "s"),
        Figure("restarts", len(restarts.stop_seconds)),
        Figure("reloads", RELOADS * len(restarts.stop_seconds)),
        Figure(
            "longest stop, from SIGTERM to the end",
            max(restarts.stop_seconds),
            "s",
            at_most=DRAIN_TIMEOUT,
        ),
    ]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--restarts", type=int, default=20, help="under the load of each client")
    parser.add_argument("--serving", type=float, default=6, help="seconds between two, about")
    parser.add_argument("--requests", type=int, default=10_000, help="of each client, at least")


COMMAND = Command(
    help="reloads and replaces the server under load; no request may be lost or refused",
    run=run,
    add_arguments=_add_arguments,
    short={"restarts": 1, "serving": 0.6, "requests": 20},
)
