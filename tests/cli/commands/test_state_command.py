"""`fastovms state` on directories and databases."""

from __future__ import annotations

import asyncio
import sqlite3
import time

import psycopg
import pytest

from fastovms.cli.main import main
from fastovms.config.service_config import StateConfig
from fastovms.state.opening.opening import open_store
from fastovms.state.store import EventPack, ResponseProgress, StoredItem, StoredResponse
from tests.state.conftest import postgres, postgres_server, test_database

__all__ = ["postgres", "postgres_server", "test_database"]  # fixtures of the state's tests

RESPONSE = StoredResponse(
    "r2", b"{}", [StoredItem("i", b"new")], [StoredItem("o", b"\xff\0")], "r1", events=b"\x01\xfe"
)


def config_of(place: str) -> StateConfig:
    return StateConfig(state_url=place) if "://" in place else StateConfig(state_dir=place)


@pytest.fixture(params=["directory", "database"])
def place(request, tmp_path) -> str:
    if request.param == "directory":
        return str(tmp_path / "place")
    address = request.getfixturevalue("postgres")
    values = "&".join(f"{name}={value}" for name, value in address.parameters.items())
    return f"postgresql://?{values}"


async def fill(place: str) -> None:
    store = open_store(config_of(place), {}, time.time)
    running = StoredResponse("running", b"{}", progress=ResponseProgress.RUNNING)
    await store.add_response("t", StoredResponse("r1", b"{}", [StoredItem("i", b"old")]))
    await store.add_response("t", running)
    await store.add_events("t", "running", EventPack(0, b"so far"))
    await store.add_conversation("t", "c", b"{}", [StoredItem(str(i), b"x") for i in range(250)])
    await store.add_response("t", RESPONSE, conversation_id="c")
    await store.close()


async def expect_all(place: str) -> None:
    store = open_store(config_of(place), {}, time.time)
    context = await store.response_context("t", "r2", max_bytes=1000)
    assert [item.body for item in context.items] == [b"old", b"new", b"\xff\0"]
    assert (await store.find_events("t", "r2", 0)).packs == [EventPack(0, b"\x01\xfe")]
    found = await store.find_events("t", "running", 0)
    assert found == (ResponseProgress.INTERRUPTED, [EventPack(0, b"so far")])
    listed = await store.conversation_context("t", "c", max_bytes=1000)
    assert [item.id for item in listed.items] == [*map(str, range(250)), "i", "o"]
    assert await store.find_items("t", ["i"]) == {"i": b"new"}
    await store.close()


def test_there_and_back(place, tmp_path, capsys):
    """From a directory to a place, from there into a file, and from that to a directory."""
    start, file, end = (str(tmp_path / name) for name in ("start", "file", "end"))
    asyncio.run(fill(start))
    assert main(["state", "migrate", start, place]) == 0
    assert main(["state", "check", place]) == 0
    assert main(["state", "export", place, file]) == 0
    assert main(["state", "import", file, end]) == 0
    added = "4 responses and conversations were added\n"
    assert capsys.readouterr().out == f"{added}260 rows were written to {file}\n{added}"
    for where in (place, end):
        asyncio.run(expect_all(where))
        assert main(["state", "migrate", start, where]) == 0
        assert "0 responses and conversations were added, 4 were there" in capsys.readouterr().out
        assert main(["state", "check", where]) == 0
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_damage_is_found(place, capsys):
    asyncio.run(fill(place))
    damage = "UPDATE items SET body = {} WHERE id = '7'"
    if "://" in place:
        with psycopg.connect(place, autocommit=True) as connection:
            connection.execute(damage.format(r"'\x0011223344'"))
            connection.execute("UPDATE totals SET num_objects = 9 WHERE slot = 1")
    else:
        with sqlite3.connect(f"{place}/state.db") as connection:
            connection.execute(damage.format("x'0011223344'"))
        connection.close()
    assert main(["state", "check", place]) == 1
    told = capsys.readouterr()
    assert "body is damaged" in told.out
    assert ("are counted" in told.out) == ("://" in place)
    assert "fault" in told.err


def test_a_file_that_is_no_database_is_left_alone(tmp_path, capsys):
    (tmp_path / "state.db").write_bytes(b"no database" * 1000)
    assert main(["state", "check", str(tmp_path)]) == 1
    assert "file is not a database" in capsys.readouterr().err
    assert not (tmp_path / "state.db.damaged").exists()


@pytest.mark.parametrize("cut", [0, 10, -1, -30])
def test_a_file_that_was_cut_off_adds_nothing(tmp_path, capsys, cut):
    start, file, end = (str(tmp_path / name) for name in ("start", "file", "end"))
    asyncio.run(fill(start))
    assert main(["state", "export", start, file]) == 0
    whole = (tmp_path / "file").read_bytes()
    (tmp_path / "file").write_bytes(whole[:cut])
    if cut == -1:  # a line needs no end
        (tmp_path / "file").write_bytes(whole.replace(b'"c"', b'"d"'))
    assert main(["state", "import", file, end]) == 2
    assert "fastovms: " in capsys.readouterr().err
    asyncio.run(fill(end))
    assert main(["state", "check", end]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["check", "NONE"], 2, "there is no state in"),
        (["check", "postgresql://127.0.0.1:1/x"], 1, "Connection refused"),
        (["check", "postgresql://127.0.0.1:1/x?y=1"], 2, "no URL that libpq understands"),
        (["import", "NONE", "NONE"], 2, "cannot read"),
        (["migrate", "NONE", "NONE"], 2, "there is no state in"),
    ],
)
def test_a_place_that_is_none(tmp_path, capsys, arguments, code, message):
    given = [text.replace("NONE", str(tmp_path / "none")) for text in arguments]
    assert main(["state", *given]) == code
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_directory_that_a_server_uses(tmp_path, capsys):
    async def check() -> int:
        store = open_store(StateConfig(state_dir=str(tmp_path)), {}, time.time)
        try:
            return await asyncio.to_thread(main, ["state", "check", str(tmp_path)])
        finally:
            await store.close()

    assert asyncio.run(check()) == 2
    assert "another server uses it" in capsys.readouterr().err
