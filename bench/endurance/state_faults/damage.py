"""`damage`: reads state files whose pages a disk has damaged. Each stored object must be found
unchanged, or not at all, or with an error; and the server must always get a usable state."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from bench.endurance.state_faults.simulated_disk import MEMORY
from bench.endurance.state_faults.state_workload import Client, Kept, Step, find
from bench.figures.figure import Figure
from fastovms.app.state_opening import open_store
from fastovms.errors import ConfigurationError, StateFailed
from fastovms.server_config import StateConfig
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateStore

History = dict[str, list[Kept]]
"""The states of each object by id. The last state is the one that must be found."""

_PAGE: Final = 4096
_NUM_CLIENTS: Final = 8
_NUM_STEPS: Final = 40
"""The number of objects of each client before the damage."""


def _one_bit(page: bytearray, random: Random) -> None:
    page[random.randrange(len(page))] ^= 1 << random.randrange(8)


def _some_bytes(page: bytearray, random: Random) -> None:
    start = random.randrange(len(page))
    part = random.randbytes(min(random.randrange(1, 64), len(page) - start))
    page[start : start + len(part)] = part


def _a_sector(page: bytearray, random: Random) -> None:
    start = random.randrange(0, len(page), 512)
    page[start : start + 512] = random.choice((bytes(512), random.randbytes(512)))[: len(page)]


def _everything(page: bytearray, random: Random) -> None:
    page[:] = random.choice((bytes(len(page)), random.randbytes(len(page))))


_DAMAGES: Final[Sequence[Callable[[bytearray, Random], None]]] = (
    _one_bit,
    _some_bytes,
    _a_sector,
    _everything,
)


def measure_damage(num_damages: int, random: Random) -> list[Figure]:
    """Damages one or more pages of copies of a file, and opens each copy as a server does."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        closed, crashed = Path(directory, "closed"), Path(directory, "crashed")
        history = asyncio.run(_make(closed, crashed, Random(random.random())))
        logging.disable(logging.CRITICAL)
        try:
            for _ in range(num_damages):
                copy = Path(directory, "copy")
                shutil.copytree(random.choice((closed, crashed)), copy)
                file = random.choice(sorted(copy.glob("state.db*")))
                _damage(file, random)
                counts += asyncio.run(_look(copy, history))
                counts["set aside"] += bool(list(copy.glob("*.damaged")))
                shutil.rmtree(copy)
        finally:
            logging.disable(logging.NOTSET)
    return [
        Figure("damaged: files opened", num_damages),
        Figure("damaged: objects found in them as they were", counts["whole"], at_least=1),
        Figure("damaged: objects that are an error now", counts["failed"]),
        Figure("damaged: objects that are no longer there", counts["missing"]),
        Figure("damaged: objects as they were before, since the log lost its end", counts["older"]),
        Figure(
            "damaged: objects with texts other than those kept", counts["other texts"], at_most=0
        ),
        Figure("damaged: objects without some of their items", counts["fewer items"]),
        Figure("damaged: files set aside", counts["set aside"]),
        Figure("damaged: starts refused", counts["refused"], at_most=0),
        Figure("damaged: errors that a client would see as a 500", counts["crashed"], at_most=0),
        Figure(
            "damaged: states that cannot be written after the next start", counts["dead"], at_most=0
        ),
    ]


async def _make(closed: Path, crashed: Path, random: Random) -> History:
    """Creates the state of a server that has ended, and of a server that has crashed, with its log.
    Returns the states of each object."""
    history: History = defaultdict(list)

    def note(step: Step) -> None:
        for id, kept in (step.contents or {}).items():
            history[id].append(kept.after_restart())

    clients = [Client(n, Random(random.random()), note) for n in range(_NUM_CLIENTS)]
    store = _open(closed)
    for _ in range(_NUM_STEPS):
        for client in clients:
            await client.step(store)
    shutil.copytree(closed, crashed)
    await store.close()
    left = {id for client in clients for id in client.contents}
    return {id: states for id, states in history.items() if id in left}


def _open(directory: Path) -> StateStore:
    store = open_store(StateConfig(state_dir=str(directory)), {}, time.time)
    assert store is not None
    return store


def _damage(file: Path, random: Random) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(random.choice((1, 1, 1, 4, 16))):
        start = random.randrange(0, max(len(data), 1), _PAGE)
        page = data[start : start + _PAGE]
        if page:
            random.choice(_DAMAGES)(page, random)
            data[start : start + len(page)] = page
    if random.random() < 0.1:
        del data[random.randrange(len(data) + 1) :]
    file.write_bytes(data)


async def _look(directory: Path, history: History) -> Counter[str]:
    counts: Counter[str] = Counter()
    try:
        store = _open(directory)
    except ConfigurationError:
        return Counter(["refused"])
    for id, states in history.items():
        counts[await _find(store, id, states)] += 1
    await store.close()
    try:
        store = _open(directory)
    except ConfigurationError:
        return counts + Counter(["refused"])
    counts["dead"] += not await _can_write(store)
    await store.close()
    return counts


async def _find(store: StateStore, id: str, states: Sequence[Kept]) -> str:
    """Returns the outcome of reading an object as a word."""
    try:
        found = await find(store, id)
    except StateFailed:
        return "failed"
    except Exception:
        return "crashed"
    if found is None:
        return "missing"
    if found == states[-1]:
        return "whole"
    if found in states:
        return "older"
    if any(_is_part(found, kept) for kept in states):
        return "fewer items"
    return "other texts"


def _is_part(found: Kept, kept: Kept) -> bool:
    same = found == replace(kept, input=found.input, output=found.output)
    return same and {*found.input, *found.output} <= {*kept.input, *kept.output}


async def _can_write(store: StateStore) -> bool:
    try:
        await store.run(Operations.add_conversation, "tenant", "another one", b"{}", [])
    except StateFailed:
        return False
    return True
