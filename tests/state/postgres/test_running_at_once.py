"""Two servers on one PostgreSQL database that run, follow, cancel and delete at the same time."""

from __future__ import annotations

import asyncio
import random

import pytest

from fastovms.parts.postgres.database import DatabaseLink, PostgresDatabase
from fastovms.state.operations import Operations
from fastovms.state.running_responses import Replica
from fastovms.state.state_store import StateStore
from fastovms.state.store import EventPack, ResponseProgress, StoredItem, StoredResponse
from tests.replicas import BOUNDS, LEASE

NUM_RESPONSES = 24
NUM_PACKS = 8
RUNNING = ResponseProgress.RUNNING


@pytest.fixture
async def stores(postgres, clock):
    stores = []
    for id in "ab":
        link, replica = DatabaseLink(postgres), Replica(id, LEASE)
        databases = [
            PostgresDatabase(link, BOUNDS, clock, replica=replica, only_reads=number == 2)
            for number in range(3)
        ]
        stores.append(StateStore(*databases[:2], readers=databases[2:], replica=replica))
    yield stores
    for store in stores:
        assert store.stats().num_failures == 0
        await store.close()


async def run(store: StateStore, id: str, conversation_id: str) -> bool:
    """Runs a response as a server does. Returns whether it was kept to the end."""
    assert await store.run(
        Operations.add_response, "t", StoredResponse(id, b"{}", progress=RUNNING)
    )
    for number in range(NUM_PACKS):
        if not await store.run(Operations.add_events, "t", id, EventPack(number, b"x" * 100)):
            return False
    done = StoredResponse(id, b"{}", [StoredItem(id, b"in")], [StoredItem(id, b"out")], events=b"x")
    return await store.run(Operations.finish_response, "t", done, conversation_id=conversation_id)


async def follow(store: StateStore, id: str) -> ResponseProgress | None:
    """Reads events until the response has ended. Returns how."""
    progress, num_events = None, 0
    while (found := await store.run(Operations.find_events, "t", id, num_events)) is not None:
        progress = found.progress
        if progress is not RUNNING:
            break
        assert [pack.first for pack in found.packs if pack.first >= num_events] == list(
            range(num_events, num_events + len([p for p in found.packs if p.first >= num_events]))
        )
        num_events = max([num_events, *(pack.first + 1 for pack in found.packs)])
    return progress


@pytest.mark.slow
async def test_concurrent_operations_do_not_conflict(stores, make_postgres):
    rng = random.Random(0)
    database = make_postgres()
    await stores[0].run(Operations.add_conversation, "t", "c", b"{}", [])
    running = [
        asyncio.ensure_future(run(stores[number % 2], str(number), "c"))
        for number in range(NUM_RESPONSES)
    ]
    others = [
        asyncio.ensure_future(follow(stores[number % 2], str(rng.randrange(NUM_RESPONSES))))
        for number in range(NUM_RESPONSES)
    ]
    deleted = []
    while not all(task.done() for task in running):
        store = rng.choice(stores)
        match rng.randrange(5):
            case 0:
                await store.request_cancel("t", str(rng.randrange(NUM_RESPONSES)))
            case 1 if len(deleted) < 4:
                id = str(rng.randrange(NUM_RESPONSES))
                if await store.run(Operations.delete_response, "t", id):
                    deleted.append(id)
            case 2:
                await store.run(Operations.interrupt_expired, 60.0)
            case _:
                await store.run(Operations.renew_leases)
    kept = [str(number) for number, task in enumerate(running) if await task]
    await asyncio.gather(*others)
    assert {*kept, *deleted} == {str(number) for number in range(NUM_RESPONSES)}
    context = await stores[1].run(Operations.conversation_context, "t", "c", max_bytes=10**6)
    assert [item.body for item in context.items] == [b"in", b"out"] * len(kept)
    assert sorted(item.id for item in context.items[::2]) == sorted(kept)
    for store in stores:
        assert await store.run(Operations.renew_leases) == []
    database.check()
