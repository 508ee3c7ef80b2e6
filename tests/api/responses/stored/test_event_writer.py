"""Events are written as they come: one write at a time, each with all that has gathered."""

from __future__ import annotations

import asyncio

import pytest

from fastovms.api.responses.stored import event_writer
from fastovms.api.responses.stored.event_log import EventLog
from fastovms.api.responses.stored.event_writer import write_events
from fastovms.errors import StateFailed, TooLarge
from fastovms.state.store import EventPack, ResponseKey
from tests.api.responses.stored.test_event_log import read_all

KEY = ResponseKey("t", "r")


class SlowStore:
    """Keeps packs when it is told to.

    Attributes:
        outcomes: what the next writes return or raise; True when there are none left.
    """

    lease = 8.0

    def __init__(self, *outcomes: bool | Exception) -> None:
        self.packs: list[EventPack] = []
        self.outcomes = list(outcomes)
        self.go_on = asyncio.Semaphore(0)
        self.num_writing = 0

    async def add_events(self, tenant: str, id: str, pack: EventPack) -> bool:
        assert (tenant, id) == KEY
        assert self.num_writing == 0
        self.num_writing += 1
        await self.go_on.acquire()
        self.num_writing -= 1
        outcome = self.outcomes.pop(0) if self.outcomes else True
        if isinstance(outcome, Exception):
            raise outcome
        if outcome:
            self.packs.append(pack)
        return outcome


def frames(*numbers: int) -> list[bytes]:
    return [b"event: x\ndata: %d\n\n" % number for number in numbers]


@pytest.fixture
async def write(monkeypatch):
    """Begins to write a log to a store; `losses` gets a word when the response is lost."""
    monkeypatch.setattr(event_writer, "SHARED_INTERVAL", 0.0)
    monkeypatch.setattr(event_writer, "_RETRY", 0.0)
    tasks = []

    def start(log: EventLog, store: SlowStore, losses: list[str]) -> asyncio.Task:
        on_loss = lambda: losses.append("lost")  # noqa: E731
        tasks.append(asyncio.ensure_future(write_events(log, store, KEY, on_loss)))  # type: ignore[arg-type]
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_comes_during_a_write_goes_into_the_next(write):
    log, store = EventLog(), SlowStore()
    log.append(frames(0))
    write(log, store, [])
    await settle()
    for number in range(1, 10):
        log.append(frames(number))
        await settle()
    for _ in range(2):
        store.go_on.release()
        await settle()
    assert [pack.first for pack in store.packs] == [0, 1]
    log.append(frames(10))
    store.go_on.release()
    await settle()
    copy = EventLog()
    for pack in store.packs:
        copy.extend(pack)
    assert read_all(copy, 0) == frames(*range(11))


async def test_a_write_that_fails_is_made_again_with_what_came_meanwhile(write):
    log, store = EventLog(), SlowStore(StateFailed("gone"), StateFailed("still"))
    log.append(frames(0, 1))
    write(log, store, losses := [])
    await settle()
    log.append(frames(2))
    for _ in range(3):
        store.go_on.release()
        await settle()
    assert [pack.first for pack in store.packs] == [0]
    copy = EventLog()
    copy.extend(store.packs[0])
    assert read_all(copy, 0) == frames(0, 1, 2)
    assert losses == []


@pytest.mark.parametrize(("outcome", "expected"), [(False, ["lost"]), (TooLarge("full"), [])])
async def test_writing_ends(write, outcome, expected):
    log, store = EventLog(), SlowStore(outcome)
    log.append(frames(0))
    task = write(log, store, losses := [])
    store.go_on.release()
    await task
    assert losses == expected
    assert log._listeners == {}


async def test_there_is_a_pause_between_writes(write, monkeypatch):
    monkeypatch.setattr(event_writer, "SHARED_INTERVAL", 3600.0)
    log, store = EventLog(), SlowStore()
    store.go_on = asyncio.Semaphore(100)
    log.append(frames(0))
    write(log, store, [])
    await settle()
    log.append(frames(1))
    await settle()
    assert [pack.first for pack in store.packs] == [0]
