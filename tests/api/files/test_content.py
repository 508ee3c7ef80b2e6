"""Contents are sent whole or in part, and no faster than the client reads."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from fastovms.api.files.content import byte_range, send_content
from fastovms.errors import NotFound, StateFailed
from fastovms.files.file_record import FileRecord
from fastovms.http.routing.messages import Headers, Request
from fastovms.system.disk_threads import DiskThreads


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (None, range(10)),
        ("bytes=0-4", range(5)),
        ("bytes=4-", range(4, 10)),
        ("bytes=-3", range(7, 10)),
        ("bytes=-30", range(10)),
        ("bytes=5-99", range(5, 10)),
        ("bytes=10-", None),
        ("bytes=-0", None),
        ("bytes=5-4", range(10)),
        ("bytes=0-1,3-4", range(10)),
        ("bytes=-", range(10)),
        ("lines=1-2", range(10)),
    ],
)
def test_ranges(asked, wanted) -> None:
    assert byte_range(asked, 10) == wanted


class Sent:
    """A stream that is never read faster than `on_writable` is called."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.writable = self.started = True
        self.closed = False
        self.on_writable = None

    def send(self, data: bytes) -> None:
        assert self.writable
        self.pieces.append(data)
        self.writable = False
        asyncio.get_running_loop().call_soon(self.read)

    def read(self) -> None:
        self.writable = True
        self.on_writable()

    def finish(self, data: bytes = b"") -> None:
        self.closed = True


def record(size: int) -> FileRecord:
    return FileRecord(id="file-1", tenant="", name="a", purpose="batch", size=size, created_at=1)


async def ask(path, size: int, asked: str | None = None, threads: DiskThreads | None = None):
    threads = threads or DiskThreads("files")
    stream = Sent()
    opened: list[tuple] = []

    def open_stream(request, head, ping):
        opened.append((head.status, dict(head.headers), head.length))
        return stream

    headers = Headers([] if asked is None else [("range", asked)])
    request = Request("GET", "/", headers=headers, open_stream=open_stream)
    response = await send_content(request, record(size), path, threads)
    return response, stream, opened


async def test_large_files_come_piece_by_piece(tmp_path) -> None:
    content = bytes(range(256)) * 4096
    (tmp_path / "a").write_bytes(content)
    response, stream, opened = await ask(tmp_path / "a", len(content))
    assert response is None
    assert stream.closed
    assert b"".join(stream.pieces) == content
    assert len(stream.pieces) == 4
    assert opened == [(200, {"Accept-Ranges": "bytes"}, len(content))]


async def test_small_ones_and_ranges_come_at_once(tmp_path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    response, *_ = await ask(tmp_path / "a", 10)
    assert (response.status, response.body) == (200, b"0123456789")
    response, *_ = await ask(tmp_path / "a", 10, "bytes=2-3")
    assert (response.status, response.body) == (206, b"23")
    assert dict(response.headers)["Content-Range"] == "bytes 2-3/10"
    response, *_ = await ask(tmp_path / "a", 10, "bytes=10-")
    assert (response.status, dict(response.headers)["Content-Range"]) == (416, "bytes */10")


async def test_a_content_that_is_gone(tmp_path) -> None:
    with pytest.raises(NotFound, match="No such File object: file-1"):
        await ask(tmp_path / "a", 10)


async def test_a_content_that_cannot_be_read(tmp_path) -> None:
    with pytest.raises(StateFailed, match="cannot be read: Is a directory"):
        await ask(tmp_path, 10)


def num_open(path) -> int:
    """Returns how many descriptors lead to a file."""
    num = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            num += os.readlink(link) == str(path)
        except FileNotFoundError:
            continue  # that of the directory itself
    return num


@pytest.mark.parametrize("call", ["open", "pread"])
async def test_who_leaves_leaves_nothing_open(tmp_path, monkeypatch, call: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    real, begun, go = getattr(os, call), threading.Event(), threading.Event()
    results: list[object] = []

    def wait(*args):
        begun.set()
        go.wait()
        results.append(real(*args))
        return results[-1]

    monkeypatch.setattr(os, call, wait)
    threads = DiskThreads("files")
    asking = asyncio.ensure_future(ask(path, 10, threads=threads))
    async with asyncio.timeout(20):
        await asyncio.to_thread(begun.wait)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.to_thread(int)
    go.set()
    await threads.close()
    assert num_open(path) == 0
    if call == "pread":
        assert results == [b"0123456789"]  # it was open until then
