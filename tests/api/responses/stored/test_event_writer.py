"""Events are written as they come: one write at a time, each with all that has gathered."""

from __future__ import annotations

import asyncio
from asyncio import Task

import pytest

from fastovms.api.responses.resumption.kept_outputs import unpack_outputs
from fastovms.api.responses.stored import event_writer
from fastovms.api.responses.stored.event_log import EventLog
from fastovms.api.responses.stored.event_writer import EventWriter
from fastovms.errors import StateFailed, TooLarge
from fastovms.params import GenerationOutput
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
    """Begins to write to a store what is added to a writer; `losses` gets a word when the response
    is lost."""
    monkeypatch.setattr(event_writer, "SHARED_INTERVAL", 0.0)
    monkeypatch.setattr(event_writer, "_RETRY", 0.0)
    tasks = []

    def start(log: EventLog, store: SlowStore, losses: list[str]) -> tuple[EventWriter, Task]:
        writer = EventWriter(log, store, KEY, keeps_outputs=True)  # type: ignore[arg-type]
        tasks.append(asyncio.ensure_future(writer.run(lambda: losses.append("lost"))))
        return writer, tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def said(*token_ids: int) -> GenerationOutput:
    return GenerationOutput(0, list(token_ids), None, len(token_ids))


async def test_what_comes_during_a_write_goes_into_the_next(write):
    log, store = EventLog(), SlowStore()
    writer, _ = write(log, store, [])
    writer.add(frames(0))
    await settle()
    for number in range(1, 10):
        writer.add(frames(number))
        await settle()
    for _ in range(2):
        store.go_on.release()
        await settle()
    assert [pack.first for pack in store.packs] == [0, 1]
    writer.add(frames(10))
    store.go_on.release()
    await settle()
    copy = EventLog()
    for pack in store.packs:
        copy.extend(pack)
    assert read_all(copy, 0) == frames(*range(11))


async def test_nobody_is_sent_what_is_not_kept(write):
    log, store = EventLog(), SlowStore()
    writer, _ = write(log, store, [])
    writer.add(frames(0, 1))
    await settle()
    writer.add(frames(2))
    assert log.num_events == 0
    store.go_on.release()
    await settle()
    assert read_all(log, 0) == frames(0, 1)
    assert writer.take_unsent() == frames(2)


async def test_events_are_kept_with_what_they_were_made_of(write):
    log, store = EventLog(), SlowStore()
    writer, _ = write(log, store, [])
    writer.add(frames(0))
    await settle()
    for number in (1, 2, 3):
        writer.add_output(said(number))
        writer.add(frames(number) if number != 2 else [])
    writer.add_output(said(4, 5))
    for _ in range(2):
        store.go_on.release()
        await settle()
    assert store.packs[0].outputs is None
    outputs = unpack_outputs(store.packs[1].outputs)
    assert [output.token_ids for output in outputs] == [[1], [2], [3], [4, 5]]


async def test_a_write_that_fails_is_made_again_with_what_came_meanwhile(write):
    log, store = EventLog(), SlowStore(StateFailed("gone"), StateFailed("still"))
    writer, _ = write(log, store, losses := [])
    writer.add_output(said(1))
    writer.add(frames(0, 1))
    await settle()
    writer.add_output(said(2))
    writer.add(frames(2))
    store.go_on.release()
    await settle()
    assert read_all(log, 0) == frames(0, 1, 2), "clients do not wait for a disk that fails"
    for _ in range(2):
        store.go_on.release()
        await settle()
    assert [pack.first for pack in store.packs] == [0]
    copy = EventLog()
    copy.extend(store.packs[0])
    assert read_all(copy, 0) == frames(0, 1, 2)
    outputs = unpack_outputs(store.packs[0].outputs)
    assert [output.token_ids for output in outputs] == [[1], [2]]
    assert losses == []


@pytest.mark.parametrize(
    ("outcome", "expected", "logged"), [(False, ["lost"], 0), (TooLarge("full"), [], 2)]
)
async def test_writing_ends(write, outcome, expected, logged):
    log, store = EventLog(), SlowStore(outcome)
    writer, task = write(log, store, losses := [])
    writer.add(frames(0))
    store.go_on.release()
    await task
    writer.add(frames(1))
    assert losses == expected
    assert log.num_events == logged


async def test_there_is_a_pause_between_writes(write, monkeypatch):
    """It begins with the first one that has what the model has said, which is made at once."""
    monkeypatch.setattr(event_writer, "SHARED_INTERVAL", 3600.0)
    log, store = EventLog(), SlowStore()
    store.go_on = asyncio.Semaphore(100)
    writer, task = write(log, store, [])
    writer.add(frames(0))
    await settle()
    assert not writer.advanced.is_set()
    writer.add_output(said(1))
    writer.add(frames(1))
    await settle()
    assert writer.advanced.is_set()
    writer.add_output(said(2))
    writer.add(frames(2))
    await settle()
    assert [pack.first for pack in store.packs] == [0, 1]
    task.cancel()
    await writer.flush()
    assert [pack.first for pack in store.packs] == [0, 1, 2]
    assert read_all(log, 0) == frames(0, 1, 2)


async def test_what_makes_no_event_yet_is_kept_too(write):
    log, store = EventLog(), SlowStore()
    store.go_on = asyncio.Semaphore(100)
    writer, _ = write(log, store, [])
    writer.add(frames(0))
    await settle()
    for number in (1, 2):
        writer.add_output(said(number))
        await settle()
    writer.add_output(said(3))
    writer.add(frames(1))
    await settle()
    packs = {pack.first: pack for pack in store.packs}  # one takes the place of another
    assert len(store.packs) == 4
    assert list(packs) == [0, 1]
    outputs = unpack_outputs(packs[1].outputs)
    assert [output.token_ids for output in outputs] == [[1], [2], [3]]
    copy = EventLog()
    for pack in store.packs:
        copy.extend(pack)
    assert read_all(copy, 0) == read_all(log, 0) == frames(0, 1)
    writer.add_output(said(4))
    await settle()
    assert store.packs[-1].first == 2


async def test_a_log_that_others_have_begun_goes_on(write):
    log, store = EventLog(), SlowStore()
    store.go_on = asyncio.Semaphore(100)
    log.append(frames(0, 1, 2))
    writer, _ = write(log, store, [])
    writer.add(frames(3))
    await settle()
    assert [pack.first for pack in store.packs] == [3]
    assert read_all(log, 0) == frames(0, 1, 2, 3)
