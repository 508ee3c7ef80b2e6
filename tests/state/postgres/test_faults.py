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
from fastovms.parts.postgres.schema import open_session
from fastovms.server_config import StateConfig
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateStore
from tests.postgres_server import PostgresServer


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
async def test_hanging_database_fails_operations_in_time(url, postgres_server, monkeypatch):
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
