"""Tests of `fastovms/parts/postgres/shared_state.py`."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from fastovms.app.state_opening import open_store
from fastovms.errors import ConfigurationError, StateFailed
from fastovms.parts.postgres import shared_state
from fastovms.parts.postgres.schema import CHANNEL, open_session
from fastovms.parts.postgres.server_address import ServerAddress
from fastovms.parts.postgres.shared_state import NotificationListener
from fastovms.server_config import StateConfig
from fastovms.state.operations import Operations
from fastovms.state.store import EventPack, ResponseProgress, StoredResponse
from tests.postgres_server import PostgresServer
from tests.state.postgres.test_replicas import pgbouncer, url_of

__all__ = ["pgbouncer"]  # a fixture


async def notify(address: ServerAddress, topic: str) -> None:
    parameters = address.connection_parameters()
    async with await psycopg.AsyncConnection.connect(**parameters, autocommit=True) as connection:
        await connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, topic))


@pytest.fixture
async def listener(postgres):
    listener = NotificationListener(postgres)
    yield listener
    await listener.close()


async def test_notification_wakes_the_watches_of_its_topic(listener, postgres):
    with listener.watch("mine") as mine, listener.watch("other") as other:
        await mine.changed(60)  # it listens from now on
        await other.changed(60)
        waiting = [asyncio.ensure_future(watch.changed(3600)) for watch in (mine, other)]
        await notify(postgres, "mine")
        await asyncio.wait_for(waiting[0], 60)
        assert not waiting[1].done()
        waiting[1].cancel()


async def test_listener_reconnects_and_wakes_every_watch(listener, postgres, monkeypatch):
    monkeypatch.setattr(shared_state, "_FIRST_DELAY", 0.01)
    with listener.watch("mine") as watch:
        await watch.changed(60)
        parameters = postgres.connection_parameters()
        with psycopg.connect(**parameters, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
            )
        await asyncio.wait_for(watch.changed(3600), 60)  # for what it may have missed
        await notify(postgres, "mine")
        await asyncio.wait_for(watch.changed(3600), 60)


@pytest.mark.slow
async def test_listener_closes_at_once(postgres):
    listener = NotificationListener(postgres)
    await listener.close()
    for seconds in (0.0, 0.2):
        with listener.watch("mine"):
            await asyncio.sleep(seconds)
    began = time.monotonic()
    await listener.close()
    assert time.monotonic() - began < 30
    assert len(asyncio.all_tasks()) == 1


async def test_watch_without_a_server_times_out(postgres_server: PostgresServer):
    gone = {"host": "127.0.0.1", "port": "1", "dbname": "x", "connect_timeout": "1"}
    listener = NotificationListener(ServerAddress(gone))
    with listener.watch("mine") as watch:
        await watch.changed(0.05)
    await listener.close()


@pytest.mark.slow
async def test_listen_url_bypasses_a_pooler(postgres, pgbouncer):
    """What listens through it hears nothing, and is in nobody's way."""
    urls = {"pooled": url_of(pgbouncer), "direct": url_of(postgres)}
    stores = [
        open_store(StateConfig(state_url=urls["pooled"], listen_url=listen_url), {}, time.time)
        for listen_url in (None, urls["direct"], urls["direct"])
    ]
    deaf, hearing, owner = stores
    await owner.run(
        Operations.add_response, "t", StoredResponse("r", b"{}", progress=ResponseProgress.RUNNING)
    )
    with deaf.watch_response("t", "r") as missed, hearing.watch_response("t", "r") as watch:
        await watch.changed(60)  # it listens from now on
        await missed.changed(0.2)
        for number in range(20):
            await owner.run(Operations.add_events, "t", "r", EventPack(number, b"x"))
            await asyncio.wait_for(watch.changed(3600), 60)
            for store in stores:
                found = await store.run(Operations.find_events, "t", "r", 0)
                assert len(found.packs) == number + 1
    for store in stores:
        assert store.stats().num_failures == 0
        await store.close()


def open_at(url: str, **fields):
    return open_store(StateConfig(state_url=url, **fields), {}, time.time)


async def test_store_without_its_database_starts_and_fails_operations(postgres, caplog):
    url = "postgresql://me:secret@127.0.0.1:1/state"
    store = open_at(url)
    with pytest.raises(StateFailed, match="the state is not available"):
        await store.run(Operations.add_conversation, "t", "c", b"{}", [])
    assert "Connection refused" in store.trouble()
    assert not store.stats().is_on_disk
    assert store.stats().num_failures == 1
    assert "other users of the machine can see" in caplog.text
    assert "secret" not in caplog.text + store.trouble()
    await store.close()


def test_database_of_a_later_version_is_refused(postgres):
    session = open_session(postgres.connection_parameters())
    session.execute("CREATE TABLE state_version (version integer NOT NULL)")
    session.execute("INSERT INTO state_version VALUES (99)")
    session.close()
    host = conninfo_to_dict(url_of(postgres))["host"]
    with pytest.raises(ConfigurationError, match=f"cannot keep the state in postgresql://{host}/"):
        open_at(url_of(postgres))
