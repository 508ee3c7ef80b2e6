"""The store hands each operation to its thread, as it was asked."""

from __future__ import annotations

import inspect

import pytest

from fastovms.state.operations import Operations
from fastovms.state.store import StateStats
from fastovms.state.threaded_store import ThreadedStore

OPERATIONS = [
    name for name, _ in inspect.getmembers(Operations, inspect.isfunction) if name[0] != "_"
]


class Recorder:
    """In the place of the operations: takes note of what it is asked."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def __getattr__(self, name: str):
        return lambda *arguments: self.asked.append((name, *arguments))


@pytest.mark.parametrize("name", OPERATIONS)
async def test_every_operation_gets_its_arguments(make_sqlite, monkeypatch, name: str) -> None:
    store, recorder = ThreadedStore(make_sqlite()), Recorder()

    async def run(operation):
        operation(recorder)

    monkeypatch.setattr(store, "_read", run)
    monkeypatch.setattr(store, "_write", run)
    method = getattr(store, name)
    parameters = inspect.signature(method).parameters.values()
    positional = [object() for each in parameters if each.kind is not each.KEYWORD_ONLY]
    named = {each.name: object() for each in parameters if each.kind is each.KEYWORD_ONLY}
    await method(*positional, **named)
    assert recorder.asked == [(name, *positional, *named.values())]
    await store.close()


async def test_what_is_kept_and_where(make_sqlite, tmp_path) -> None:
    store = ThreadedStore(make_sqlite(path=str(tmp_path / "state.db")))
    await store.add_conversation("t", "c", b"{}", [])
    stats = store.stats()
    assert stats == StateStats(1, stats.num_bytes, num_failures=0, is_on_disk=True)
    assert store.trouble() == ""
    await store.close()
