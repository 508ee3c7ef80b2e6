from __future__ import annotations

import sqlite3

import pytest

from fastovms.errors import StateFailed
from fastovms.state.seal import seal, unseal
from fastovms.state.store import EventPack, ResponseProgress, StoredItem, StoredResponse
from tests.state.transactions import do


@pytest.mark.parametrize("text", [b"", b"{}", bytes(10_000)])
def test_a_seal(text):
    sealed = seal(text)
    assert unseal(sealed) == text
    for damaged in (sealed[:-1], sealed[1:], sealed + b"0", bytes([sealed[0] ^ 1]) + sealed[1:]):
        with pytest.raises(StateFailed, match="is damaged"):
            unseal(damaged)
    with pytest.raises(StateFailed):
        unseal(b"")


def test_nothing_is_sealed_as_nothing():
    assert seal(None) is None


READS = {
    "response": lambda state: state.find_response("t", "r"),
    "output": lambda state: state.find_response("t", "r2"),
    "events": lambda state: state.find_events("t", "r", 0),
    "events so far": lambda state: state.find_events("t", "r3", 0),
    "chain": lambda state: state.response_context("t", "r2", 1000),
    "conversation": lambda state: state.find_conversation("t", "c"),
    "items": lambda state: state.conversation_context("t", "c", 1000),
    "item": lambda state: state.find_item("t", "c", "i"),
    "items by id": lambda state: state.find_items("t", ["i"]),
}


@pytest.mark.parametrize("read", READS)
def test_whatever_a_disk_has_changed_is_no_answer(make_sqlite, tmp_path, read):
    path = str(tmp_path / "state.db")
    database = make_sqlite(path=path)
    item = StoredItem("i", b"text")
    response = StoredResponse("r", b"{}", [], [], events=b"events")
    do(database, lambda state: state.add_response("t", response, None))
    response = StoredResponse("r2", b"{}", [], [item])
    do(database, lambda state: state.add_response("t", response, None))
    running = StoredResponse("r3", b"{}", progress=ResponseProgress.RUNNING)
    do(database, lambda state: state.add_response("t", running, None))
    do(database, lambda state: state.add_events("t", "r3", EventPack(0, b"events")))
    do(database, lambda state: state.add_conversation("t", "c", b"{}", [item]))
    do(database, READS[read])
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE objects SET body = x'7b7d7b7d7b', events = x'00112233445566'")
    connection.execute("UPDATE items SET body = x'00112233445566'")
    connection.execute("UPDATE event_packs SET data = x'00112233445566'")
    connection.close()
    with pytest.raises(StateFailed, match="is damaged"):
        do(database, READS[read])
    assert do(database, lambda state: state.delete_response("t", "r")), "it can still be deleted"
    assert (tmp_path / "state.db").exists(), "others may be as they were"
