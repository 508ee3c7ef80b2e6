"""The simulation itself: it repeats itself, and notices planted faults and replays them."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from bench.common.process import ServerProcess
from tests.simulation.planted import FAULTS, Fault
from tests.simulation.several import Totals


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_worlds_are_in_order_and_repeat_themselves() -> None:
    """To the last byte, whatever the hashes of strings and whatever ran before. The first of these
    worlds has TLS, the second one reloads, the third one encoders that fail, the fourth speech."""
    worlds = ("--these", "33,34,32,71,36,38", "--hash")
    first = simulate(*worlds)
    assert first.returncode == 0, first.stdout + first.stderr
    traces = first.stdout.splitlines()[:6]
    assert simulate(*worlds, hash_seed="77").stdout.splitlines()[:6] == traces
    last = simulate("--first", "38", "--seeds", "1", "--hash", hash_seed="1")
    assert last.stdout.splitlines()[0] == traces[5]


FAILED_BEFORE = (
    "146,259,321,344,522,523,526,982,1123,1158,1406,1421,1809,1828,2277,2442,3072,3300,3535,4661,"
    "20036,20180,20491,20709,21078,23464,24136,25083,26698,1292,1663"
)
"""Seeds that failed by a fault of the server (1123, 1663, 4661, 20036, 20180), or of the
simulation."""


@pytest.mark.nightly
@pytest.mark.slow
def test_worlds_that_failed_before_are_in_order() -> None:
    done = simulate("--these", FAILED_BEFORE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert Totals.parse(done.stdout).num_worlds == FAILED_BEFORE.count(",") + 1


@pytest.mark.nightly(but=("a commit is not synced",))
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "a generation that is left is not aborted",
        "the key of a cached block lacks its parent",
        "kernels that come into use have a cache of their own",
        "a commit is not synced",
    ],
)
def test_planted_faults_are_found_and_replayed(name: str) -> None:
    found = simulate("--fault", name, "--seeds", "100", "--jobs", "1")
    assert found.returncode == 1, found.stdout + found.stderr
    replay = re.search(r"^replay: python -m tests.simulation (.*)$", found.stdout, re.MULTILINE)
    assert replay is not None
    again = simulate(*replay[1].split(), "--fault", name)
    assert again.returncode == 1
    kind, *_ = re.findall(r"fails:\n  (\w+):", found.stdout)
    assert f"FAILURE {kind} " in again.stdout


@pytest.mark.nightly
@pytest.mark.slow
def test_interrupted_processes_print_their_totals() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "100000", "--jobs", "2"]
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # shells may ignore it
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=listening
    ) as process:
        children: list[ServerProcess] = []
        # A start takes 2 s to 4 s of a processor, and most worlds take less than 1 s.
        while len(children) < 2 or min(child.cpu_seconds for child in children) < 6:
            assert process.poll() is None
            time.sleep(0.1)
            files = Path(f"/proc/{process.pid}/task").glob("*/children")
            pids = " ".join(file.read_text() for file in files).split()
            children = [ServerProcess("", int(pid)) for pid in pids]
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert len(pids) == 2
    assert Totals.parse(output).num_worlds > 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_shared_memory_lasts_as_long_as_its_file_is_open() -> None:
    """Also where a crash, or another server, has ended the use of the database."""
    code = """
import gc, random, sqlite3, weakref
from tests.simulation import disk
disk.install_disk()
simulated = disk.Disk(random.Random(1))
disk.use_disk(simulated)
connection = sqlite3.connect("/state.db")
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("CREATE TABLE numbers (number)")
[kept] = [weakref.ref(each) for each in simulated.files["/state.db"].regions]
simulated.crash(loses_power=False)
gc.collect()
assert kept() is not None
connection.close()
gc.collect()
assert kept() is None
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_totals_are_read_from_their_text() -> None:
    totals = Totals(3, 22, 3956, 411.0, 0.5, 1)
    assert Totals.parse(str(totals)) == totals


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_can_be_planted(fault: Fault) -> None:
    spec = importlib.util.find_spec(fault.module)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).read_text(encoding="utf-8").count(fault.old) == 1
