"""Tests of `fastovms/parts/batches/store.py`."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError, RequestError, StateNotLoaded
from fastovms.parts.batches.store import FileRecord, FileStore, OwnedRecord, Records
from fastovms.server_config import FilesConfig
from fastovms.system.threads import DiskThreads

# Records are there whole or not at all.


class Note(OwnedRecord, kw_only=True):
    text: str


def note(id: str, text: str, created_at: int = 0) -> Note:
    return Note(id=id, tenant="t", created_at=created_at, text=text)


def test_records_outlive_the_process(tmp_path) -> None:
    folder = Records(tmp_path / "notes", Note)
    folder.write("a", note("a", "1"))
    folder.write("b", note("b", "2"))
    folder.write("c", note("c", "2", created_at=-1))
    folder.write("a", note("a", "3"))
    folder.delete("b")
    folder.delete("b")
    again = Records(tmp_path / "notes", Note)
    assert again.of("t") == [note("c", "2", created_at=-1), note("a", "3")]
    assert again.find("t", "a") == note("a", "3")
    assert again.find("other", "a") is None
    assert again.of("other") == []
    assert (tmp_path / "notes" / "a.json").stat().st_mode & 0o777 == 0o600


def test_damaged_record_is_skipped_with_a_log_line(tmp_path, caplog) -> None:
    Records(tmp_path, Note).write("a", note("a", "1"))
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.new").write_text("half of")
    folder = Records(tmp_path, Note)
    assert folder.known == {"a": note("a", "1")}
    assert folder.unread == {"b"}
    assert "/b.json: " in caplog.text


def test_a_disk_that_fails_leaves_the_old_one(tmp_path, monkeypatch) -> None:
    folder = Records(tmp_path, Note)
    folder.write("a", note("a", "1"))

    def fail(descriptor: int) -> None:
        raise OSError("broken")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="broken"):
        folder.write("a", note("a", "2"))
    assert Records(tmp_path, Note).of("t") == [note("a", "1")]
    folder.delete("a")
    assert not list(tmp_path.iterdir())


# Files are kept within bounds, for their tenant, until they expire; ends of the process leave no
# halves.


CONFIG = FilesConfig(max_file_size=100, max_files_size=250, max_files=3)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    store = FileStore(tmp_path / "files", CONFIG, clock, DiskThreads("files"))
    yield store
    store.check()
    store.close()


async def add(store: FileStore, id: str, *, size: int = 10, **fields) -> FileRecord:
    partial = store.new_partial()
    partial.write_bytes(b"x" * size)
    record = FileRecord(
        **{
            "id": id,
            "tenant": "",
            "name": "../../etc/passwd",
            "purpose": "batch",
            "size": size,
            "created_at": 1000,
            **fields,
        }
    )
    await store.add(partial, record)
    return record


async def test_added_file_is_visible_to_its_tenant_only(store) -> None:
    record = await add(store, "file-1", tenant="a")
    assert store.find("a", "file-1") == record
    assert store.find("b", "file-1") is None
    assert [list(store.list(tenant)) for tenant in "ab"] == [[record], []]
    assert store.path_of("file-1").read_bytes() == b"x" * 10
    assert not await store.delete("b", "file-1")
    assert await store.delete("a", "file-1")
    assert not store.path_of("file-1").exists()
    assert store.num_bytes == 0


async def test_the_next_process_finds_what_is_whole(store, tmp_path, clock) -> None:
    record = await add(store, "file-1")
    await add(store, "file-2")
    store.path_of("file-2").unlink()  # as if the process had ended between record and content
    store.path_of("file-3").write_text("left")
    store.new_partial().write_text("left")
    store.close()
    again = FileStore(tmp_path / "files", CONFIG, clock, DiskThreads("files"))
    assert list(again.list("")) == [record]
    assert [path.name for path in (tmp_path / "files").rglob("file-*")].count("file-3") == 0
    assert not list((tmp_path / "files" / "partial").iterdir())
    store._lock = again._lock  # the fixture closes it


async def test_file_with_an_unreadable_record_is_kept(store, tmp_path, clock, caplog) -> None:
    record = await add(store, "file-1", size=100)
    path = tmp_path / "files" / "records" / "file-1.json"
    written = path.read_bytes()
    path.write_text('{"id": "file-1", "of": "another version"}')
    store.close()
    again = FileStore(tmp_path / "files", CONFIG, clock, store.threads)
    assert "1 files (100 bytes) are stored but not listed" in caplog.text
    with pytest.raises(StateNotLoaded, match="record of file-1 cannot be read"):
        again.find("", "file-1")
    assert again.num_bytes == 100
    assert not again.bytes.take("", 151)
    again.close()
    path.write_bytes(written)
    store._lock = again._lock
    again = FileStore(tmp_path / "files", CONFIG, clock, store.threads)
    assert (list(again.list("")), again.num_bytes) == ([record], 100)
    assert again.path_of("file-1").read_bytes() == b"x" * 100
    store._lock = again._lock  # the fixture closes it


async def test_cancelled_upload_leaves_a_whole_file(store, monkeypatch) -> None:
    sync, begun, go = os.fsync, threading.Event(), threading.Event()
    monkeypatch.setattr("os.fsync", lambda descriptor: (begun.set(), go.wait(), sync(descriptor)))
    adding = asyncio.ensure_future(add(store, "file-1"))
    await asyncio.to_thread(begun.wait)
    adding.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert store.find("", "file-1") is not None
    assert store.num_bytes == 10
    store.drop("file-1")
    store.drop("file-1")
    await store.threads.close()
    assert (store.find("", "file-1"), store.num_bytes) == (None, 0)
    assert not list(store._contents.parent.rglob("file-1*"))


@pytest.mark.parametrize("num_syncs", [0, 1, 2])  # of the record, its directory, the contents'
async def test_a_disk_that_fails_leaves_the_content_where_it_was(
    store, monkeypatch, num_syncs
) -> None:
    sync, left = os.fsync, [None] * num_syncs

    def fail(descriptor: int) -> None:
        if not left:
            raise OSError("broken")
        left.pop()
        sync(descriptor)

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="broken"):
        await add(store, "file-1")
    assert (store.find("", "file-1"), store.num_bytes) == (None, 0)
    [partial] = store._partial.iterdir()
    assert partial.read_bytes() == b"x" * 10
    assert not list(store._contents.parent.rglob("file-1*"))


async def test_a_file_that_cannot_be_deleted_is_still_there(store, monkeypatch) -> None:
    record = await add(store, "file-1", expires_at=2000)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", lambda *args, **options: os.unlink("/dev/null/x"))
        with pytest.raises(OSError, match="Not a directory"):
            await store.delete("", "file-1")
    assert store.find("", "file-1") == record
    assert store.num_bytes == 10
    assert await store.delete("", "file-1")
    assert not list(store._contents.parent.rglob("file-1*"))


async def test_file_being_deleted_is_not_found(store, monkeypatch) -> None:
    await add(store, "file-1")
    go, erase = threading.Event(), store._erase
    monkeypatch.setattr(store, "_erase", lambda id: (go.wait(), erase(id)))
    deleting = asyncio.ensure_future(store.delete("", "file-1"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert store.find("", "file-1") is None
    deleting.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await deleting
    assert not store.path_of("file-1").exists()


def test_file_store_in_use_is_refused_to_a_second_process(store, tmp_path, clock) -> None:
    with pytest.raises(ConfigurationError, match="another process uses it"):
        FileStore(tmp_path / "files", CONFIG, clock, DiskThreads("files"))


def test_file_store_in_place_of_a_file_is_a_configuration_error(tmp_path, clock) -> None:
    (tmp_path / "files").write_text("no directory")
    with pytest.raises(ConfigurationError, match="files cannot be stored in"):
        FileStore(tmp_path / "files", CONFIG, clock, DiskThreads("files"))


def test_a_store_that_cannot_be_read_gives_the_directory_back(tmp_path, clock) -> None:
    records = tmp_path / "files" / "records"
    records.parent.mkdir()
    records.write_text("no directory")
    with pytest.raises(ConfigurationError, match="files cannot be stored"):
        FileStore(tmp_path / "files", CONFIG, clock, DiskThreads("files"))
    records.unlink()
    FileStore(tmp_path / "files", CONFIG, clock, DiskThreads("files")).close()


@pytest.mark.parametrize("place", ["records", "contents", "partial", "records/file-1.json"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_in_the_file_store_are_not_followed(
    tmp_path, clock, caplog, place, kind
) -> None:
    path = tmp_path / "files" / place
    path.parent.mkdir(parents=True)
    if kind == "link":
        path.symlink_to(tmp_path)
    else:
        os.mkfifo(path)
    if place.endswith(".json"):  # a record that cannot be read is left out
        FileStore(tmp_path / "files", CONFIG, clock, DiskThreads("files")).close()
        assert "cannot read the record" in caplog.text
        return
    with pytest.raises(ConfigurationError, match=f"{path}: "):
        FileStore(tmp_path / "files", CONFIG, clock, DiskThreads("files"))


async def test_store_limits_bytes_and_number_of_files(store) -> None:
    await add(store, "file-1", size=100)
    assert not store.bytes.take("", 151)
    assert store.bytes.take("", 150)
    assert not store.bytes.take("", 1)
    store.bytes.give_back("", 150)
    await add(store, "file-2")
    assert store.has_room()
    await add(store, "file-3")
    assert not store.has_room()


async def test_files_expire_unless_they_are_in_use(store, clock) -> None:
    await add(store, "file-1", expires_at=1010)
    await add(store, "file-2", expires_at=1020)
    store.pin("file-2")
    clock.now = 1030.0
    assert [record.id for record in store.list("")] == ["file-2"]
    with pytest.raises(RequestError, match="the input of a batch"):
        await store.delete("", "file-2")
    store.unpin("file-2")
    clock.now = 1031.0
    assert store.find("", "file-2") is None


async def test_a_wrong_clock_deletes_a_file_at_a_time(store, clock) -> None:
    for number in range(3):
        await add(store, f"file-{number}", expires_at=2000 + number)
    clock.now = 1e9
    assert list(store.list("")) == []
    assert store.find("", "file-1") is None
    assert len(store) == 2
    clock.now = 1000.0
    assert [record.id for record in store.list("")] == ["file-1", "file-2"]
    clock.now = 3000.0
    for _ in range(2):
        assert list(store.list("")) == []
        clock.now += 60.0
    assert len(store) == 0


async def test_a_slow_disk_holds_back_no_other_work(store, monkeypatch) -> None:
    sync, go = os.fsync, threading.Event()
    monkeypatch.setattr("os.fsync", lambda descriptor: (go.wait(), sync(descriptor)))
    adding = [asyncio.ensure_future(add(store, f"file-{n}")) for n in range(40)]
    async with asyncio.timeout(60):
        await asyncio.to_thread(int)
    go.set()
    await asyncio.gather(*adding)
    assert len(store) == 40


def test_stored_files_are_private_to_the_user(store, tmp_path: Path) -> None:
    for path in (tmp_path / "files").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
