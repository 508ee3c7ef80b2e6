"""Files of older versions become files of this one, those of others are left alone."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace

import pytest

from fastovms.errors import ConfigurationError
from fastovms.state.sqlite.database import Database
from fastovms.state.state_database import StateBounds
from fastovms.state.store import (
    EventPack,
    ResponseProgress,
    Resumption,
    StoredItem,
    StoredResponse,
)
from tests.state.sqlite.test_location import open_at


async def test_a_file_of_version_1_gets_checksums_and_the_tables_of_running_responses(tmp_path):
    store = open_at(tmp_path)
    response = StoredResponse(
        "r", b"{}", [StoredItem("i", b"in")], [StoredItem("o", b"out")], events=b"events"
    )
    await store.add_conversation("t", "c", b"{}", [StoredItem("i", b"")])
    await store.add_response("t", response, conversation_id="c")
    running = StoredResponse("running", b"{}", progress=ResponseProgress.RUNNING)
    await store.add_response("t", running)
    await store.close()
    connection = sqlite3.connect(tmp_path / "state.db")
    for statement in (
        "UPDATE objects SET size = size - 4 * (1 + (events IS NOT NULL) + "
        "(SELECT count(*) FROM items WHERE object = key))",
        "UPDATE objects SET body = substr(body, 1, length(body) - 4), "
        "events = substr(events, 1, length(events) - 4)",
        "UPDATE items SET body = substr(body, 1, length(body) - 4)",
        "UPDATE objects SET progress = 0 WHERE id = 'running'",
        "DROP TABLE runs",
        "DROP TABLE event_packs",
        "DROP TABLE jobs",
        "PRAGMA user_version = 1",
    ):
        connection.execute(statement)
    connection.commit()
    connection.close()
    store = open_at(tmp_path)
    found = await store.find_response("t", "r")
    left = await store.find_response("t", "running")
    assert left.progress is ResponseProgress.INTERRUPTED
    assert await store.add_response("t", replace(running, id="new"))
    assert await store.add_events("t", "new", EventPack(0, b"events"))
    assert (found.body, found.output) == (response.body, response.output)
    assert (await store.find_events("t", "r", 0)).packs == [EventPack(0, b"events")]
    context = await store.conversation_context("t", "c", max_bytes=1000)
    assert context.items == [StoredItem("i", b""), *response.input, *response.output]
    await store.close()
    Database(str(tmp_path / "state.db"), StateBounds(1e9, 100, 10**6), time.time).check()


async def test_nobody_goes_on_with_what_a_file_of_version_3_has_running(tmp_path):
    store = open_at(tmp_path)
    await store.add_response("t", StoredResponse("r", b"{}", progress=ResponseProgress.RUNNING))
    await store.add_events("t", "r", EventPack(0, b"events"))
    await store.close()
    connection = sqlite3.connect(tmp_path / "state.db")
    for statement in (
        "DROP TABLE jobs",
        "ALTER TABLE runs DROP COLUMN model",
        "ALTER TABLE runs DROP COLUMN attempts",
        "ALTER TABLE event_packs DROP COLUMN outputs",
        "PRAGMA user_version = 3",
    ):
        connection.execute(statement)
    connection.close()
    store = open_at(tmp_path)
    found = await store.find_events("t", "r", 0)
    assert found == (ResponseProgress.INTERRUPTED, [EventPack(0, b"events")])
    assert await store.take_over(None, 9) == []
    new = StoredResponse(
        "new", b"{}", progress=ResponseProgress.RUNNING, resumption=Resumption("m", b"job")
    )
    assert await store.add_response("t", new)
    assert await store.add_events("t", "new", EventPack(0, b"events", b"outputs"))
    await store.close()
    store = open_at(tmp_path)
    assert await store.take_over(None, 9) == [(("t", "new"), False, "m", 0)]
    cut = await store.begin_attempt("t", "new")
    assert (cut.job, cut.packs) == (b"job", [EventPack(0, b"events", b"outputs")])
    await store.close()
    Database(str(tmp_path / "state.db"), StateBounds(1e9, 100, 10**6), time.time).check()


async def test_a_file_of_another_version_is_left_alone(tmp_path):
    await open_at(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigurationError, match="its format is 99, not 4"):
        open_at(tmp_path)


async def test_a_file_of_an_older_server_gets_the_index_of_tenants(tmp_path):
    await open_at(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.execute("DROP INDEX objects_by_tenant")
    connection.close()
    await open_at(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "state.db")
    [plan] = connection.execute(
        "EXPLAIN QUERY PLAN SELECT key FROM objects WHERE progress <> 0 AND tenant = 't' "
        "ORDER BY used_at LIMIT 1"
    ).fetchall()
    assert "objects_by_tenant" in plan[-1]
    connection.close()
