"""Replicas whose connections to PostgreSQL fail: acknowledged data is kept, nothing is stored
twice, and work proceeds afterwards. `python -m tests.state.postgres` runs more seeds."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

import psycopg
import pytest

from tests.postgres_server import PostgresServer
from tests.state.postgres.bad_connections import HURRY, LEAST_ACKNOWLEDGED, Report, run


@pytest.mark.nightly
@pytest.mark.slow
async def test_state_over_failing_connections_is_consistent(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, seconds in HURRY:
        monkeypatch.setattr(module, name, seconds)

    async def run_seed(seed: int) -> Report:
        name = f"bad_connections_{seed}"
        with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {name}")
        return await run(seed, postgres_server.url(name), postgres_server.port)

    reports = await asyncio.gather(*map(run_seed, range(3)))
    for report in reports:
        assert report.failures == []
        assert report.counts["acknowledged"] >= LEAST_ACKNOWLEDGED
    assert any(what.startswith("commit ") for report in reports for what in report.counts)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("events are added without a check of the owner", "lease"),
        ("a commit of unknown outcome is repeated", "twice"),
        ("a commit of unknown outcome counts as done", "forgotten|gap"),
    ],
)
def test_planted_faults_are_found(name: str, kind: str) -> None:
    command = [sys.executable, "-m", "tests.state.postgres", "--seeds", "200", "--fault", name]
    command += ["--seconds", "240"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=360)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(f"  (?:{kind}): ", done.stdout)
