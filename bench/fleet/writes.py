"""`writes`: how many responses a second one and several replicas' stores keep in PostgreSQL, which
waits for its disk, and what a response costs it."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

import psycopg

from bench.figures.command import Command
from bench.figures.figure import Figure
from bench.fleet.fleet import NUM_REPLICAS
from tests.postgres_server import PostgresServer

_NUM_AT_ONCE: Final = 64
"""Requests that one store has at the same time."""
_COUNTERS: Final = """
    SELECT (SELECT sum(xact_commit) FROM pg_stat_database), pg_current_wal_lsn() - '0/0'
"""


class Written(NamedTuple):
    """What was stored in one run, and what it took."""

    num_responses: int
    num_transactions: int
    wal_bytes: int
    cpu_seconds: float


def _write(postgres: PostgresServer, num_stores: int, seconds: float) -> Written:
    writer = [sys.executable, "-m", "bench.fleet.store_writer", postgres.url(), f"{seconds:g}"]
    before, cpu = _counters(postgres), postgres.cpu_seconds
    processes = [
        subprocess.Popen([*writer, str(_NUM_AT_ONCE)], stdout=subprocess.PIPE, text=True)
        for _ in range(num_stores)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a store has failed")
    after = _counters(postgres)
    return Written(
        sum(map(int, outputs)),
        after[0] - before[0],
        after[1] - before[1],
        postgres.cpu_seconds - cpu,
    )


def _counters(postgres: PostgresServer) -> tuple[int, int]:
    """Returns how many transactions there were, and how many bytes of the write-ahead log."""
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        row = connection.execute(_COUNTERS).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def run(options: argparse.Namespace) -> Sequence[Figure]:
    figures = []
    postgres = PostgresServer(is_durable=True)
    try:
        _write(postgres, 1, 1)  # makes the tables
        for num_stores in (1, options.stores):
            written = _write(postgres, num_stores, options.seconds)
            count = written.num_responses
            name = f"{num_stores} store{'s' if num_stores > 1 else ''}"
            figures += [
                Figure(f"{name}: responses stored a second", count / options.seconds),
                Figure(f"{name}: responses a transaction", count / written.num_transactions),
                Figure(
                    f"{name}: PostgreSQL's processor time of a response",
                    1000 * written.cpu_seconds / count,
                    "ms",
                ),
                Figure(f"{name}: log of a response", written.wal_bytes / count / 1024, "KiB"),
            ]
    finally:
        postgres.close()
    return figures


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stores", type=int, default=NUM_REPLICAS)
    parser.add_argument("--seconds", type=float, default=20, help="of each run")


COMMAND = Command(
    help="counts the responses that stores keep in PostgreSQL in a second",
    run=run,
    add_arguments=_add_arguments,
    short=None,
)
