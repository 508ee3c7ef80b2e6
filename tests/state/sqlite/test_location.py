"""Tests of `fastovms/state/sqlite/location.py`."""

from __future__ import annotations

import errno
import os
import pydoc
import sqlite3
import stat
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fastovms.app.state_opening import open_store
from fastovms.errors import ConfigurationError, StateFailed, StateNotLoaded, description_of
from fastovms.server_config import StateConfig
from fastovms.state.database import StateBounds
from fastovms.state.operations import Operations
from fastovms.state.sqlite import location
from fastovms.state.sqlite.database import UnusableFile
from fastovms.state.sqlite.location import AwaitedFile, open_directory
from fastovms.state.store import StoredItem
from fastovms.system.disk import state_directory
from tests.state.conftest import Clock


@pytest.mark.parametrize("error", [UnusableFile("no luck"), KeyError("unexpected")])
def test_delays_between_attempts_grow_up_to_a_bound(caplog, error):
    def fail():
        raise error

    clock = Clock()
    state = AwaitedFile(fail, description_of(error).removeprefix("UnusableFile: "), clock)
    delays = []
    for _ in range(8):
        delays.append(state.do_maintenance())
        clock.now += delays[-1]
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
    assert caplog.text == "", "the same reason is not told again and again"


@pytest.mark.parametrize(
    ("environ", "directory"),
    [
        ({"STATE_DIRECTORY": "/var/lib/fastovms", "HOME": "/root"}, "/var/lib/fastovms"),
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}, "/var/lib/a"),
        ({"XDG_STATE_HOME": "/s", "HOME": "/root"}, "/s/fastovms"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/root"}, "/root/.local/state/fastovms"),
        ({"HOME": "/root"}, "/root/.local/state/fastovms"),
        ({}, "~/.local/state/fastovms"),
    ],
)
def test_default_directory_follows_the_environment(environ, directory, monkeypatch):
    monkeypatch.delenv("HOME")
    assert state_directory(environ) == Path(directory).expanduser()


def open_at(directory: Path | str | None, environ=None):
    config = StateConfig(state_dir=None if directory is None else str(directory))
    return open_store(config, environ or {}, time.time)


async def test_store_in_memory_writes_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_at(":memory:")
    await store.run(Operations.add_conversation, "t", "c", b"{}", [])
    await store.close()
    assert list(tmp_path.iterdir()) == []


async def test_directory_is_used_by_one_server_only(tmp_path, caplog):
    store = open_at(tmp_path)
    with pytest.raises(ConfigurationError, match=f"{tmp_path}: another server uses it"):
        open_at(tmp_path)
    environ = {"STATE_DIRECTORY": str(tmp_path)}
    other = open_at(None, environ)
    assert "not stored until" in caplog.text
    with pytest.raises(StateNotLoaded, match="another server uses it"):
        await other.run(Operations.find_conversation, "t", "c")
    assert other.stats().num_failures == 0
    await store.close()
    await open_at(tmp_path).close()
    await other.close()


async def test_unwritable_default_directory_without_a_state_reads_as_empty(tmp_path, monkeypatch):
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    refused = OSError(errno.EROFS, "Read-only file system")

    def refuse(path: Path, **_: bool) -> None:
        raise refused

    monkeypatch.setattr(location, "private_directory", refuse)
    for directory, is_read in ((None, True), (tmp_path / "chosen", False)):
        store = open_at(directory, environ)
        if is_read:
            assert await store.run(Operations.find_conversation, "t", "c") is None
        else:
            with pytest.raises(StateNotLoaded, match="Read-only"):
                await store.run(Operations.find_conversation, "t", "c")
        await store.close()
    (tmp_path / "fastovms").mkdir()
    (tmp_path / "fastovms" / "state.db").write_text("")
    store = open_at(None, environ)
    with pytest.raises(StateNotLoaded, match="Read-only"):
        await store.run(Operations.find_conversation, "t", "c")
    await store.close()


def test_unusable_state_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot keep the state"):
        open_at(tmp_path / "file" / "below")


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal", ".lock"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_link_or_pipe_instead_of_a_database_is_refused(tmp_path, suffix, kind) -> None:
    target = tmp_path / "target"
    target.write_text("of somebody else")
    path = tmp_path / "state" / f"{location.STATE_FILE}{suffix}"
    path.parent.mkdir()
    if kind == "link":
        path.symlink_to(target)
    else:
        os.mkfifo(path)
    with pytest.raises(UnusableFile, match=f"^{path.name}: it is (a symbolic|not a)"):
        open_directory(path.parent, StateBounds(1, 1, 1), time.time)
    assert target.read_text() == "of somebody else"


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("no luck")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("place", "error", "starts"),
    [
        ("open_file", OSError(errno.ENOSPC, "no luck"), True),
        ("open_file", OSError(errno.EACCES, "no luck"), True),
        ("Path.mkdir", OSError(errno.EROFS, "no luck"), True),
        ("Path.mkdir", OSError(errno.ENOENT, "no luck"), True),  # as of /proc
        ("os.open", OSError(errno.EROFS, "no luck"), True),
        ("lock_file", OSError(errno.ENOLCK, "no luck"), True),
        ("Path.mkdir", OSError(errno.ENAMETOOLONG, "no luck"), False),
        ("Database", sqlite_error(sqlite3.SQLITE_FULL), True),
        ("Database", sqlite_error(sqlite3.SQLITE_CANTOPEN), True),
        ("Database", sqlite_error(sqlite3.SQLITE_READONLY), True),
    ],
)
async def test_failing_disk_at_start_stops_the_server_only_if_configured(
    tmp_path, monkeypatch, caplog, place, error, starts
):
    calls = []
    owner, _, name = f"fastovms.state.sqlite.location.{place}".rpartition(".")
    usual = getattr(pydoc.locate(owner), name)

    def fail_once(*args, **keywords):
        calls.append(args)
        if len(calls) == 1:
            raise error
        return usual(*args, **keywords)

    monkeypatch.setattr(f"{owner}.{name}", fail_once)
    if not starts:
        with pytest.raises(ConfigurationError, match="no luck"):
            open_at(tmp_path)
        return
    store = open_at(tmp_path)
    assert "not stored until" in caplog.text
    assert "no luck" in caplog.text
    assert store.trouble() == "responses are not stored: no luck"
    assert not store.stats().is_on_disk
    with pytest.raises(StateNotLoaded, match="no luck"):
        await store.run(Operations.add_conversation, "t", "c", b"{}", [])
    await store.close()


async def test_state_moves_to_disk_once_it_recovers(tmp_path, monkeypatch):
    monkeypatch.setattr("fastovms.state.sqlite.location._FIRST_DELAY", 0.01)
    (tmp_path / "state").symlink_to("/sys")  # nobody may write there, root neither
    store = open_at(tmp_path / "state")
    with pytest.raises(StateNotLoaded):
        await store.run(Operations.add_conversation, "t", "c", b"{}", [])
    (tmp_path / "real").mkdir()
    (tmp_path / "state").unlink()
    (tmp_path / "state").symlink_to("real")
    while store.trouble():
        with suppress(StateNotLoaded):
            await store.run(Operations.find_conversation, "t", "c")
    assert store.stats().is_on_disk
    await store.run(Operations.add_conversation, "t", "d", b"{}", [])
    await store.close()
    store = open_at(tmp_path / "real")
    for path in (tmp_path / "real").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert await store.run(Operations.find_conversation, "t", "c") is None
    assert await store.run(Operations.find_conversation, "t", "d") == b"{}"
    await store.close()


async def test_directory_of_systemd_is_used_once_another_server_leaves_it(tmp_path, monkeypatch):
    monkeypatch.setattr("fastovms.state.sqlite.location._FIRST_DELAY", 0.01)
    environ = {"STATE_DIRECTORY": str(tmp_path)}
    first, second = open_at(None, environ), open_at(None, environ)
    await first.run(Operations.add_conversation, "t", "first", b"{}", [])
    assert second.trouble() == "responses are not stored: another server uses it"
    await first.close()
    while second.trouble():
        with suppress(StateNotLoaded):
            await second.run(Operations.find_conversation, "t", "c")
    assert await second.run(Operations.find_conversation, "t", "first") == b"{}"
    await second.close()


async def test_second_server_of_a_user_keeps_its_state_in_memory(tmp_path, caplog):
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    first, second = open_at(None, environ), open_at(None, environ)
    await first.run(Operations.add_conversation, "t", "first", b"{}", [])
    await second.run(Operations.add_conversation, "t", "second", b"{}", [])
    assert "in memory" in caplog.text
    assert await second.run(Operations.find_conversation, "t", "second") == b"{}"
    assert await second.run(Operations.find_conversation, "t", "first") is None
    assert not second.stats().is_on_disk
    await first.close()
    await second.close()


async def test_damaged_file_is_set_aside_at_the_start(tmp_path, caplog):
    (tmp_path / "state.db").write_bytes(os.urandom(10_000))
    (tmp_path / "state.db-wal").write_bytes(os.urandom(10_000))
    store = open_at(tmp_path)
    assert "is corrupt" in caplog.text
    assert (tmp_path / "state.db.damaged").stat().st_size == 10_000
    assert await store.run(Operations.find_conversation, "t", "c") is None
    await store.close()


async def test_damage_found_later_sets_the_file_aside(tmp_path, caplog):
    store = open_at(tmp_path)
    await store.run(Operations.add_conversation, "t", "c", b"{}", [StoredItem("i", b"text")])
    await store.close()
    connection = sqlite3.connect(tmp_path / "state.db")
    [page] = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'items'"
    ).fetchone()
    [size] = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    data = bytearray((tmp_path / "state.db").read_bytes())
    data[(page - 1) * size : page * size] = b"\xff" * size
    (tmp_path / "state.db").write_bytes(data)
    store = open_at(tmp_path)
    for _ in range(3):
        with pytest.raises(StateFailed):
            await store.run(Operations.find_item, "t", "c", "i")
    assert await store.run(Operations.find_conversation, "t", "c") == b"{}"
    assert caplog.text.count("is corrupt") == 1
    await store.close()
    store = open_at(tmp_path)
    assert await store.run(Operations.find_conversation, "t", "c") is None
    await store.run(Operations.add_conversation, "t", "c", b"{}", [StoredItem("i", b"text")])
    assert await store.run(Operations.find_item, "t", "c", "i") == b"text"
    await store.close()
    assert (tmp_path / "state.db.damaged").exists()


async def test_damaged_file_that_cannot_be_renamed_stays_in_use(tmp_path, caplog, monkeypatch):
    store = open_at(tmp_path)

    def fail(*paths):
        raise OSError(errno.EROFS, "no luck")

    def find_damage(state):
        error = sqlite3.DatabaseError("page 7")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(StateFailed, match="page 7"):
        await store._reading.run(find_damage)
    assert "cannot be renamed" in caplog.text
    assert await store.run(Operations.find_conversation, "t", "c") is None, "it goes on"
    await store.close()
