"""The simulation itself: it repeats itself, and notices planted faults and replays them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.planted import FAULTS, Fault


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_worlds_are_in_order_and_repeat_themselves() -> None:
    """To the last byte, whatever the hashes of strings and whatever ran before. The first of these
    worlds has TLS, the second one reloads."""
    worlds = ("--first", "33", "--seeds", "6", "--hash")
    first = simulate(*worlds)
    assert first.returncode == 0, first.stdout + first.stderr
    traces = first.stdout.splitlines()[:6]
    assert simulate(*worlds, hash_seed="77").stdout.splitlines()[:6] == traces
    last = simulate("--first", "38", "--seeds", "1", "--hash", hash_seed="1")
    assert last.stdout.splitlines()[0] == traces[5]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "a generation that is left is not aborted",
        "the key of a cached block lacks its parent",
        "a commit is not synced",
    ],
)
def test_planted_faults_are_found_and_replayed(name: str) -> None:
    found = simulate("--fault", name, "--seeds", "100")
    assert found.returncode == 1, found.stdout + found.stderr
    replay = re.search(r"^replay: python -m tests.simulation (.*)$", found.stdout, re.MULTILINE)
    assert replay is not None
    again = simulate(*replay[1].split(), "--fault", name)
    assert again.returncode == 1
    [kind] = re.findall(r"fails:\n  (\w+):", found.stdout)
    assert f"FAILURE {kind} " in again.stdout


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_can_be_planted(fault: Fault) -> None:
    spec = importlib.util.find_spec(fault.module)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).read_text(encoding="utf-8").count(fault.old) == 1
