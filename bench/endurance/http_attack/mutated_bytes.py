"""`bytes`: sends mutated HTTP messages over many connections at once."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from typing import Final

import uvloop

from bench.endurance.canary import Sightings, canary
from bench.endurance.http_attack.connection import AttackConnection
from bench.endurance.http_attack.http_sessions import MARK, Session, Sessions, load_seeds
from bench.endurance.server import MODEL, ServerUnderTest, server_under_test
from bench.endurance.tally import Budget, Tally, spend_after_warm_up, work_through
from bench.figures.command import Command
from bench.figures.figure import Figure

_HOST: Final = "127.0.0.1"
_DEADLINE: Final = 5.0
"""The seconds within which a response is expected, and within which the server closes a connection
after its client."""

_QUIET: Final = 0.02
"""The seconds after which the server counts as waiting for the rest of a mutated message."""

_REFUSALS_WITH_5XX: Final = (501, 503, 505)


def run(options: argparse.Namespace) -> Sequence[Figure]:
    """Sends the messages and returns the figures."""
    with server_under_test("--cache-size", "0.1") as server:
        with canary(server.url, MODEL) as sightings:
            attack = _Attack(server, options)
            uvloop.run(attack.run())
        time.sleep(_DEADLINE)
        server.check_alive()
        return attack.figures(sightings)


class _Attack:
    """The sessions of one run."""

    def __init__(self, server: ServerUnderTest, options: argparse.Namespace) -> None:
        self._server = server
        self._options = options
        self._tally = Tally(options.seed)
        self._sessions = Sessions(options.seed, load_seeds())
        self._num_connections = 0
        self._num_descriptors = server.num_descriptors()
        self._base_memory = 0.0
        self._seconds = 0.0

    async def run(self) -> None:
        options = self._options
        budget = Budget(options.first, options.count, options.seconds, self._tally)
        self._seconds = await spend_after_warm_up(
            budget, self._run_sessions, options.clients, self._note_memory
        )

    def _note_memory(self) -> None:
        self._base_memory = self._server.resident_memory()

    async def _run_sessions(self, budget: Budget) -> None:
        await work_through(budget, self._run_session)

    async def _run_session(self, index: int) -> None:
        session = self._sessions.make(index)
        connection = await AttackConnection.open(_HOST, self._server.port)
        self._num_connections += 1
        try:
            fault = await self._converse(connection, session)
        finally:
            connection.abort()
        self._tally.statuses.update(answer.status for answer in connection.answers)
        if fault:
            self._tally.fail(index, fault, b"".join(map(b"".join, session.messages)))

    async def _converse(self, connection: AttackConnection, session: Session) -> str:
        """Returns the fault of a session, or None."""
        start = time.perf_counter()
        for pieces in session.messages:
            if connection.closed:
                break
            for piece in pieces:
                connection.write(piece)
                await asyncio.sleep(0)
            if not session.statuses:
                self._tally.num_sent += 1
                await connection.wait(len(connection.answers) + 1, _QUIET)
        if session.statuses:
            # The mutant behind a pipeline counts, too.
            self._tally.num_sent += len(session.statuses) + (not session.is_exact)
            await connection.wait(len(session.statuses), _DEADLINE)
            self._tally.slowest = max(self._tally.slowest, time.perf_counter() - start)
        if session.must_close:
            await connection.wait_until_closed(_DEADLINE)
        if not connection.closed:
            connection.finish()
            await connection.wait_until_closed(_DEADLINE)
            if not connection.closed:
                return "the connection was not closed after the client's FIN"
        return judge(session, connection)

    def figures(self, sightings: Sightings) -> list[Figure]:
        options, tally, server = self._options, self._tally, self._server
        tally.print_statuses()
        at_least = options.count if not options.short else 1000
        return [
            Figure("messages", tally.num_sent, at_least=at_least),
            Figure("messages a second", tally.num_sent / self._seconds),
            Figure("connections", self._num_connections),
            Figure("answers", tally.statuses.total()),
            Figure("answers against the rules", tally.num_failures, at_most=0),
            Figure("slowest answer to a pipeline", tally.slowest, "s", at_most=_DEADLINE),
            Figure("canary: longest gap", sightings.longest_gap, "s", at_most=_DEADLINE),
            Figure("canary: streams that failed", sightings.num_failures, at_most=0),
            Figure("canary: streams", sightings.num_streams, at_least=1),
            Figure(
                "memory after it, over that after a tenth",
                server.resident_memory() - self._base_memory,
                "MiB",
                at_most=None if options.short else 32,
            ),
            Figure(
                "descriptors left",
                server.num_descriptors() - self._num_descriptors,
                at_most=2,  # those of a process that compiles kernels at a first start
            ),
        ]


def judge(session: Session, connection: AttackConnection) -> str:
    """Returns the fault of the responses, or None."""
    if connection.fault is not None:
        return str(connection.fault)
    answers = connection.answers
    for answer in answers:
        if answer.status >= 500 and answer.status not in _REFUSALS_WITH_5XX:
            return f"status {answer.status}: {answer.body[:200]!r}"
        if session.is_exact and (MARK in answer.body or MARK in answer.head):
            return f"a hidden request was answered: {answer.body[:200]!r}"
    got = [answer.status for answer in answers]
    expected = session.statuses
    if len(got) < len(expected) or (session.is_exact and len(got) > len(expected)):
        return f"answers {got} instead of {expected}"
    if any(status not in allowed for status, allowed in zip(got, expected, strict=False)):
        return f"answers {got} instead of {expected}"
    return ""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=1_000_000, help="messages to send")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which it ends anyway")
    parser.add_argument("--clients", type=int, default=64, help="connections at a time")
    parser.add_argument("--first", type=int, default=0, help="index of the first session")


COMMAND: Final = Command(
    "sends mutations of HTTP messages: splits, splices, pipelines, hidden requests",
    run,
    _add_arguments,
    {"count": 15_000, "seconds": 10.0},
)
