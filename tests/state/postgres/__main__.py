"""python -m tests.state.postgres --seeds N: runs replicas over failing connections to PostgreSQL.

Each seed takes about ten seconds, most of which it waits; several run at once.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections import Counter

import psycopg

from tests.postgres_server import PostgresServer
from tests.simulation.install import plant
from tests.simulation.planted import FAULTS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=4, help="how many seeds run at once")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most")
    parser.add_argument("--failures", type=int, default=1, help="end after so many failures")
    parser.add_argument(
        "--fault", help="the name of a fault of `tests.simulation.planted` to plant"
    )
    arguments = parser.parse_args()
    for fault in FAULTS:
        if fault.name == arguments.fault:
            plant(fault.module, fault.old, fault.new)
    logging.disable()
    server = PostgresServer()
    try:
        return asyncio.run(_run(arguments, server))
    finally:
        server.close()


async def _run(arguments: argparse.Namespace, server: PostgresServer) -> int:
    from tests.state.postgres.bad_connections import HURRY, Report, run

    for module, name, seconds in HURRY:
        setattr(module, name, seconds)
    started, counts = time.monotonic(), Counter[str]()
    num_run = num_failed = 0
    seeds = iter(range(arguments.first, arguments.first + arguments.seeds))

    def is_over() -> bool:
        is_late = time.monotonic() - started > arguments.seconds
        return is_late or num_failed >= arguments.failures

    async def run_some() -> None:
        nonlocal num_run, num_failed
        for seed in seeds:
            if is_over():
                return
            name = f"bad_connections_{seed}"
            with psycopg.connect(server.url(), autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name}")
            report: Report = await run(seed, server.url(name), server.port)
            with psycopg.connect(server.url(), autocommit=True) as connection:
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            num_run += 1
            counts.update(report.counts)
            if report.failures:
                num_failed += 1
                print(f"seed {seed} fails:")
                for kind, text in report.failures[:5]:
                    print(f"  {kind}: {text[:600]}", flush=True)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(arguments.jobs, arguments.seeds)):
            group.create_task(run_some())
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    seconds = time.monotonic() - started
    cpu = time.process_time()
    print(f"{num_run} worlds in {cpu:.1f} s of CPU and {seconds:.1f} s: {num_failed} failed")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
