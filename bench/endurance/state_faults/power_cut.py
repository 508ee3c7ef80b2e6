"""`power_cut`: simulates power cuts. All changes of a store's files are recorded, the files are
then restored to a possible state after a cut at any point, and everything that was acknowledged
before the cut must be found in them.

No process is killed, so that thousands of cuts are possible. `sqlite_vfs` records the changes
between SQLite and the files; `simulated_disk` determines the effect of a cut.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from bench.endurance.state_faults.simulated_disk import LOSSES, MEMORY, SimulatedDisk
from bench.endurance.state_faults.sqlite_vfs import FileChange, watched_files
from bench.endurance.state_faults.state_workload import Client, Contents, Step, find
from fastovms.app.state_opening import open_store
from fastovms.server_config import StateConfig
from fastovms.state.database import StateBounds
from fastovms.state.sqlite.database import Database
from fastovms.state.state_store import StateStore

UNBOUNDED: Final = StateBounds(max_age=1e9, max_count=10**9, max_bytes=10**12)
_FILE: Final = "state.db"
_NUM_CLIENTS: Final = 16
_NUM_LIVES: Final = 4
"""The number of times that the store is opened during the recording."""
_SHARE_WITHIN_RECOVERY: Final = 0.25
"""The share of the cuts that are followed by another cut while the files are opened."""

Recording = list[FileChange | Step]
Files = Mapping[str, bytes]


@dataclass(slots=True)
class CutResults:
    """The results of the cuts.

    Attributes:
        num_cuts: cuts, including those during a recovery.
        num_taken: changes of files that were not synchronized at a cut.
        num_checked: acknowledged objects that were looked up.
        faults: each names a client whose objects match neither the acknowledged operations nor
            these and the running operation, or describes another fault.
    """

    num_cuts: int = 0
    num_taken: int = 0
    num_checked: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Promise:
    """The states that a client may find: the acknowledged one, and the one after its running
    operation."""

    acknowledged: Contents = field(default_factory=dict)
    begun: Contents | None = None

    def note(self, contents: Contents | None) -> None:
        if contents is not None:
            self.begun = contents
        elif self.begun is not None:
            self.acknowledged, self.begun = self.begun, None


def record_store(num_steps: int, random: Random) -> Recording:
    """Runs random operations of concurrent clients over several openings of a store.

    Args:
        num_steps: the total number of operations.
    """
    recording: Recording = []

    def watch(change: FileChange) -> int:
        recording.append(change)
        return 0

    clients = [
        Client(number, Random(random.random()), recording.append) for number in range(_NUM_CLIENTS)
    ]

    async def live(directory: str) -> None:
        store = open_store(StateConfig(state_dir=directory), {}, time.time)
        assert store is not None
        assert not store.trouble()

        async def work(client: Client) -> None:
            for _ in range(num_steps // _NUM_CLIENTS // _NUM_LIVES):
                await client.step(store)

        await asyncio.gather(*map(work, clients))
        await store.close()
        for client in clients:
            client.restart()

    with tempfile.TemporaryDirectory(dir=MEMORY) as directory, watched_files(watch):
        for _ in range(_NUM_LIVES):
            asyncio.run(live(directory))
    return recording


def cut_everywhere(recording: Recording, num_cuts: int, random: Random) -> CutResults:
    """Cuts the power at random points of a recording and checks the files."""
    results = CutResults()
    disk = SimulatedDisk({})
    promises = [Promise() for _ in range(_NUM_CLIENTS)]
    points = sorted(random.choices(range(len(recording) + 1), k=num_cuts))
    done = 0
    for point in points:
        for entry in recording[done:point]:
            if isinstance(entry, Step):
                promises[entry.client].note(entry.contents)
            else:
                disk.apply(entry)
        done = point
        _cut(disk, promises, random, results)
    return results


def _cut(
    disk: SimulatedDisk, promises: Sequence[Promise], random: Random, results: CutResults
) -> None:
    recovery = _look_after_cut(disk, promises, random, results)
    if recovery and random.random() < _SHARE_WITHIN_RECOVERY:
        files, changes = recovery
        disk = SimulatedDisk(files)
        for change in changes[: random.randrange(len(changes) + 1)]:
            disk.apply(change)
        _look_after_cut(disk, promises, random, results)


def _look_after_cut(
    disk: SimulatedDisk, promises: Sequence[Promise], random: Random, results: CutResults
) -> tuple[Files, list[FileChange]]:
    """Returns the files after the cut, and the changes that opening them made."""
    loss = random.choice(list(LOSSES))
    files = disk.after_cut(LOSSES[loss], random)
    results.num_cuts += 1
    results.num_taken += disk.num_unsynchronized
    changes: list[FileChange] = []

    def watch(change: FileChange) -> int:
        changes.append(change)
        return 0

    directory = Path(tempfile.mkdtemp(dir=MEMORY))
    try:
        for name, contents in files.items():
            (directory / name).write_bytes(contents)
        with watched_files(watch):
            faults = _faults(directory / _FILE, promises, results)
    finally:
        shutil.rmtree(directory)
    results.faults += [f"{loss}: {fault}" for fault in faults]
    return files, changes


def _faults(path: Path, promises: Sequence[Promise], results: CutResults) -> list[str]:
    try:
        database = Database(str(path), UNBOUNDED, time.time)
    except sqlite3.Error as error:
        return [f"it cannot be opened: {error}"]
    try:
        database.check()
    except (AssertionError, sqlite3.Error) as error:
        database.close()
        return [f"it contradicts itself: {error!r}"]
    return asyncio.run(_broken_promises(StateStore(database), promises, results))


async def _broken_promises(
    store: StateStore, promises: Sequence[Promise], results: CutResults
) -> list[str]:
    faults: list[str] = []
    num_found = 0
    for number, promise in enumerate(promises):
        ids = [*promise.acknowledged, *(promise.begun or {})]
        kept = await asyncio.gather(*(find(store, id) for id in ids))
        found = {id: kept for id, kept in zip(ids, kept, strict=True) if kept is not None}
        num_found += len(found)
        results.num_checked += len(promise.acknowledged)
        if found not in [
            {id: kept.after_restart() for id, kept in contents.items()}
            for contents in (promise.acknowledged, promise.begun)
            if contents is not None
        ]:
            faults.append(f"client {number} does not find what it was promised")
    if num_found != store.stats().num_objects:
        faults.append("something is there that was deleted, or never made")
    await store.close()
    return faults
