"""A database that is killed, hangs and comes back: nothing acknowledged is lost, nobody hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import psycopg
import pytest

from fastovms.app.state_opening import open_store
from fastovms.errors import StateFailed
from fastovms.parts.postgres import database as database_link
from fastovms.parts.postgres.database import DatabaseLink, PostgresDatabase
from fastovms.parts.postgres.schema import open_session
from fastovms.parts.postgres.server_address import ServerAddress
from fastovms.server_config import StateConfig
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateStore
from fastovms.state.store import StoredItem, StoredResponse
from tests.postgres_server import PostgresServer
from tests.state.conftest import UNBOUNDED


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    """The address of an empty database of the server that may be killed."""
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS faults WITH (FORCE)")
        connection.execute("CREATE DATABASE faults")
    return postgres_server.url("faults")


def open_at(url: str) -> StateStore:
    store = open_store(StateConfig(state_url=url), {}, time.time)
    assert store is not None
    return store


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (what another process brings about)
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_database_that_is_killed_while_it_writes(url, postgres_server):
    stores = [open_at(url), open_at(url)]
    await stores[0].run(Operations.add_conversation, "t", "c", b"{}", [])
    kept: set[str] = set()
    failures: list[str] = []
    running = True

    async def write(name: str, store: StateStore) -> None:
        number = 0
        while running:
            number += 1
            item = StoredItem(f"{name}-{number}", b"x")
            try:
                async with asyncio.timeout(60):
                    response = StoredResponse(f"r{name}-{number}", b"{}", [item])
                    await store.run(Operations.add_response, "t", response, conversation_id="c")
                kept.add(item.id)
            except StateFailed as error:
                failures.append(str(error))
                await asyncio.sleep(0.01)

    async def more_are_kept(number: int) -> None:
        target = len(kept) + number
        await until(lambda: len(kept) >= target)

    writers = [asyncio.ensure_future(write(f"{number}", stores[number % 2])) for number in range(8)]
    for _ in range(3):
        await more_are_kept(20)
        postgres_server.kill()
        await until(lambda: all(store.trouble() for store in stores))
        assert not any(store.stats().is_on_disk for store in stores)
        await asyncio.to_thread(postgres_server.start)
    await more_are_kept(20)
    running = False
    await asyncio.gather(*writers)
    assert failures
    await until(lambda: not any(store.trouble() for store in stores))
    found = await stores[0].run(Operations.conversation_context, "t", "c", max_bytes=10**9)
    ids = [item.id for item in found.items]
    assert kept <= set(ids), "what was acknowledged is there"
    assert len(ids) == len(set(ids)), "nothing was done twice"
    for id in kept:
        assert await stores[1].run(Operations.find_response, "t", f"r{id}") is not None
    for store in stores:
        await store.close()
    address = ServerAddress(psycopg.conninfo.conninfo_to_dict(url))
    database = PostgresDatabase(DatabaseLink(address), UNBOUNDED, time.time)
    database.check()
    database.close()


@pytest.mark.slow
async def test_a_database_that_hangs(url, postgres_server, monkeypatch):
    monkeypatch.setattr(
        database_link,
        "open_session",
        lambda parameters, limits: open_session(parameters, limits._replace(answer=1.0)),
    )
    store = open_at(f"{url}connect_timeout=2")
    await store.run(Operations.add_conversation, "t", "c", b"{}", [])
    postgres_server.pause()
    try:
        started = time.monotonic()
        for _ in range(20):
            with pytest.raises(StateFailed):
                await store.run(Operations.add_items, "t", "c", [])
            with pytest.raises(StateFailed):
                await store.run(Operations.find_conversation, "t", "c")
        assert time.monotonic() - started < 30, "each waits for an answer"
        assert store.trouble()
    finally:
        postgres_server.resume()
    await until(lambda: not store.trouble())
    assert await store.run(Operations.find_conversation, "t", "c") == b"{}"
    await store.close()


@pytest.mark.slow
async def test_a_server_that_starts_before_its_database(url, postgres_server):
    postgres_server.kill()
    store = open_at(url)
    try:
        with pytest.raises(StateFailed, match="cannot be had"):
            await store.run(Operations.add_conversation, "t", "c", b"{}", [])
        assert not store.stats().is_on_disk
    finally:
        postgres_server.start()
    await until(lambda: not store.trouble())
    await store.run(Operations.add_conversation, "t", "c", b"{}", [])
    await store.close()
