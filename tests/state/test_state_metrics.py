from __future__ import annotations

import sqlite3

import pytest
from prometheus_client import CollectorRegistry

from fastovms.errors import StateFailed
from fastovms.state.state_metrics import StateCollector
from fastovms.state.store import StoredItem
from fastovms.state.threaded_store import ThreadedStore


async def test_what_is_kept_is_exported(make_sqlite, tmp_path):
    database = make_sqlite(path=str(tmp_path / "state.db"))
    store = ThreadedStore(database)
    registry = CollectorRegistry()
    registry.register(StateCollector(store.stats, lambda: 3))

    def values() -> list[float | None]:
        names = (
            *("state_objects", "state_bytes", "state_failures_total", "background_responses"),
            "state_on_disk",
        )
        return [registry.get_sample_value(f"fastovms_{name}") for name in names]

    assert values() == [0, 0, 0, 3, 1]
    await store.add_conversation("t", "c", b"{}", [StoredItem("i", b"text")])
    assert values() == [1, database.totals.num_bytes, 0, 3, 1]
    connection: sqlite3.Connection = database._connection
    connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StateFailed):
        await store.delete_conversation("t", "c")
    assert values()[0:3:2] == [1, 1]
    await store.close()
