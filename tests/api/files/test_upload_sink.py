"""Uploads go to the disk as they come, and leave nothing where they end early."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest

from fastovms.api.files.form_reader import FormReader
from fastovms.api.files.upload_sink import UploadSink
from fastovms.config.files_config import FilesConfig
from fastovms.errors import RequestError, StateFailed
from fastovms.files.file_store import FileStore
from fastovms.system.disk_threads import DiskThreads
from tests.api.files.forms import CONTENT_TYPE, form

MB = 1024 * 1024


class Upload:
    def __init__(self, path, config: FilesConfig | None = None) -> None:
        self.store = FileStore(path, config or FilesConfig(), time.time, DiskThreads("a"))
        self.partial = self.store.new_partial()
        size = self.store.config.max_file_size
        self.reader = FormReader(CONTENT_TYPE, self.partial, size)
        self.closed = asyncio.Event()
        self.changed = asyncio.Event()
        self.sink = UploadSink(self.store, self.reader, self.closed.set)
        self.sink.on_change = self.changed.set

    async def close(self) -> None:
        self.sink.close()
        self.sink.close()
        await self.closed.wait()
        assert not self.partial.exists()
        assert self.store.num_bytes == 0
        self.store.close()


async def test_a_whole_form(tmp_path) -> None:
    upload = Upload(tmp_path)
    body = form({"purpose": "batch"}, b"content")
    for start in range(0, len(body), 20):
        upload.sink.write(body[start : start + 20])
    reader = await upload.sink.form()
    assert reader.fields == {"purpose": "batch"}
    assert reader.path.read_bytes() == b"content"
    await upload.close()


async def test_what_is_read_waits_for_the_disk(tmp_path) -> None:
    upload = Upload(tmp_path)
    gate = threading.Event()
    feed = upload.reader.feed
    upload.reader.feed = lambda pieces: (gate.wait(), feed(pieces))[1]
    body = form({"purpose": "batch"}, b"x" * 3 * MB)
    upload.sink.write(body[:MB])
    assert not upload.sink.is_full
    upload.sink.write(body[MB:])
    assert upload.sink.is_full
    assert not upload.changed.is_set()
    gate.set()
    await upload.changed.wait()
    assert not upload.sink.is_full
    assert (await upload.sink.form()).size == 3 * MB
    await upload.close()


@pytest.mark.parametrize(
    ("body", "config", "status", "message"),
    [
        (b"no form at all", FilesConfig(), 400, "cannot be read"),
        (form(file=b"x" * 11), FilesConfig(max_file_size=10), 413, "larger than 10 bytes"),
        (form(), FilesConfig(max_files_size=10), 413, "more than 10 bytes"),
    ],
)
async def test_faults_are_told_at_once(tmp_path, body, config, status, message) -> None:
    upload = Upload(tmp_path, config)
    upload.sink.write(body)
    await upload.changed.wait()
    assert upload.sink.fault[0] == status
    assert message in upload.sink.fault[1]
    upload.sink.write(b"more")
    with pytest.raises(RequestError, match=message):
        await upload.sink.form()
    await upload.close()


async def test_a_disk_that_fails(tmp_path, caplog) -> None:
    upload = Upload(tmp_path)

    def fail(pieces) -> None:
        raise OSError(28, "No space left on device")

    upload.reader.feed = fail
    upload.sink.write(b"x")
    await upload.changed.wait()
    assert upload.sink.fault == (503, "the file cannot be kept: No space left on device")
    with pytest.raises(StateFailed):
        await upload.sink.form()
    assert "No space left" in caplog.text
    await upload.close()


async def test_a_client_that_leaves(tmp_path) -> None:
    upload = Upload(tmp_path)
    upload.sink.write(form(file=b"x" * MB)[:-100])
    await upload.close()


async def test_a_client_that_leaves_at_the_end(tmp_path, monkeypatch) -> None:
    upload = Upload(tmp_path)
    upload.sink.write(form({"purpose": "batch"}))
    begun, go, is_open = threading.Event(), threading.Event(), []

    def sync(descriptor: int) -> None:
        begun.set()
        go.wait()
        is_open.append(os.readlink(f"/proc/self/fd/{descriptor}") == str(upload.partial))

    monkeypatch.setattr("os.fsync", sync)
    taking = asyncio.ensure_future(upload.sink.form())
    async with asyncio.timeout(20):
        await asyncio.to_thread(begun.wait)
    taking.cancel()
    closing = asyncio.ensure_future(upload.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    go.set()
    await closing
    assert is_open == [True]
    assert upload.reader._file is None
