from __future__ import annotations

from random import Random

import pytest

from bench.endurance.state_faults.power_cut import cut_everywhere, record_store
from bench.endurance.state_faults.simulated_disk import LOSSES, SimulatedDisk
from bench.endurance.state_faults.sqlite_vfs import FileChange, Kind


@pytest.fixture(scope="module")
def recording():
    return record_store(300, Random(1))


def test_store_that_synchronizes_has_no_faults_after_power_cuts(recording):
    results = cut_everywhere(recording, 30, Random(2))
    assert results.faults == []
    assert results.num_cuts >= 30
    assert results.num_taken > 0
    assert results.num_checked > 0


def test_a_store_that_does_not_loses_what_it_has_acknowledged(recording):
    careless = [
        entry
        for entry in recording
        if not isinstance(entry, FileChange)
        or (entry.kind, entry.file) != (Kind.SYNC, "state.db-wal")
    ]
    assert cut_everywhere(careless, 30, Random(2)).faults


@pytest.mark.parametrize("loss", LOSSES)
def test_synchronized_writes_survive_a_power_cut(loss):
    disk = SimulatedDisk({"a": b"old."})
    disk.apply(FileChange(Kind.WRITE, "a", 0, b"new"))
    disk.apply(FileChange(Kind.SYNC, "a"))
    disk.apply(FileChange(Kind.WRITE, "a", 4, b"more"))
    disk.apply(FileChange(Kind.OPEN, "b"))
    found = [disk.after_cut(LOSSES[loss], Random(seed)) for seed in range(50)]
    assert {files["a"][:4] for files in found} == {b"new."}
    assert {len(files["a"]) for files in found} <= {4, 8}
    assert {"b" in files for files in found} == {True, False}
