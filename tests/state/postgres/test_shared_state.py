from __future__ import annotations

import time

import pytest
from psycopg.conninfo import conninfo_to_dict

from fastovms.config.service_config import StateConfig
from fastovms.errors import ConfigurationError, StateFailed
from fastovms.state.opening.opening import open_store
from fastovms.state.postgres.postgres_connection import open_session


def url_of(postgres, **more: str) -> str:
    given = postgres.parameters | more
    query = "&".join(f"{name}={value}" for name, value in given.items())
    return f"postgresql://?{query}"


def open_at(url: str, **fields):
    return open_store(StateConfig(state_url=url, **fields), {}, time.time)


async def test_two_servers_share_a_state(postgres):
    one, two = open_at(url_of(postgres)), open_at(url_of(postgres), num_connections=2)
    await one.add_conversation("t", "c", b"{}", [])
    assert await two.find_conversation("t", "c") == b"{}"
    assert await two.find_conversation("other", "c") is None
    stats = one.stats()
    # How many objects there are it knows as of its last look, which a write may overtake.
    assert (stats.num_failures, stats.is_on_disk) == (0, True)
    assert one.trouble() == ""
    await one.close()
    await two.close()


async def test_a_server_starts_without_its_database(postgres, caplog):
    url = "postgresql://me:secret@127.0.0.1:1/state"
    store = open_at(url)
    with pytest.raises(StateFailed, match="the state cannot be had"):
        await store.add_conversation("t", "c", b"{}", [])
    assert "Connection refused" in store.trouble()
    assert not store.stats().is_on_disk
    assert store.stats().num_failures == 1
    assert "other users of the machine can see" in caplog.text
    assert "secret" not in caplog.text + store.trouble()
    await store.close()


def test_a_later_version_is_refused(postgres):
    session = open_session(postgres.connection_parameters())
    session.execute("CREATE TABLE state_version (version integer NOT NULL)")
    session.execute("INSERT INTO state_version VALUES (99)")
    session.close()
    host = conninfo_to_dict(url_of(postgres))["host"]
    with pytest.raises(ConfigurationError, match=f"cannot keep the state in postgresql://{host}/"):
        open_at(url_of(postgres))
