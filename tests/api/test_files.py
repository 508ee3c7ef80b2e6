"""Tests of `fastovms/parts/batches/files.py`."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import httpx2
import msgspec
import openai
import pytest

from fastovms.api.body import BodyReader
from fastovms.api.dialect import OPENAI, render_error
from fastovms.api.uploads import FormReader, UploadSink
from fastovms.app.parts import FORMS
from fastovms.config import HttpConfig
from fastovms.errors import NotFound, RequestError, StateFailed
from fastovms.http.gates import JsonOnly
from fastovms.http.messages import Headers, Request
from fastovms.http.routing import Dispatcher, Router
from fastovms.http.server import HttpServer
from fastovms.parts.batches.endpoints import (
    BatchEndpoints,
    Batches,
    add_batch_routes,
)
from fastovms.parts.batches.files import (
    Files,
    StatePart,
    byte_range,
    send_content,
)
from fastovms.parts.batches.store import FileRecord, FileStore
from fastovms.server_config import FilesConfig
from fastovms.system.threads import DiskThreads
from tests.api.documented_values import of_files_and_batches
from tests.api.forms import BOUNDARY, CONTENT_TYPE, form, part

# Forms are read in pieces of any size, and the file of a form is written to its path.


END = f"--{BOUNDARY}--\r\n".encode()


def read(path, body: bytes, size: int = 7, max_size: int = 1000) -> FormReader:
    reader = FormReader(CONTENT_TYPE, path / "content", max_size)
    try:
        reader.feed([body[start : start + size] for start in range(0, len(body), size)])
        reader.finish()
    except BaseException:
        reader.discard()
        raise
    return reader


@pytest.mark.parametrize("size", [1, 2, 7, 100, 5000])
def test_form_is_read_from_pieces_of_any_size(tmp_path, size: int) -> None:
    content = b"\r\n--xy\r\n--" + bytes(range(256)) + b"\r\n"
    reader = read(tmp_path, form({"purpose": "batch"}, content, "../../é.jsonl"), size)
    assert reader.fields == {"purpose": "batch"}
    assert (reader.file_name, reader.size) == ("../../é.jsonl", len(content))
    assert [path.name for path in tmp_path.iterdir()] == ["content"]
    assert (tmp_path / "content").read_bytes() == content
    assert (tmp_path / "content").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (form()[:-10], "the form ends before its last boundary"),
        (b"", "the form ends before its last boundary"),
        (b"no form", "cannot be read"),
        (form({"a": "x" * 1025}), "a must have at most 1024 bytes"),
        (form({f"a{i}": "" for i in range(33)}), "at most 32 fields"),
        (part('name="a"', b"1") * 2 + END, "a must be given once"),
        (part('filename="a"', b"1") + END, "must not be a file"),
        (part('name="b"; filename="a"', b"1") + END, "b must not be a file"),
        (part('name="file"; filename="a"', b"1") * 2 + END, "one file, not several"),
        (form(name="x" * 257), "at most 256 characters"),
        (part('x="a"', b"1") + END, "must have a name"),
        (part('name="a"', b"\xff") + END, "a must be UTF-8"),
    ],
)
def test_malformed_form_is_refused_and_leaves_no_file(tmp_path, body: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read(tmp_path, body)
    assert not list(tmp_path.iterdir())
    for content_type in ("multipart/form-data", f"a/b; boundary={'x' * 300}"):
        with pytest.raises(RequestError, match=r"[bB]oundary"):
            FormReader(content_type, tmp_path / "content", 10)


# Uploads are written to the disk as they are received, and incomplete ones are deleted.


MB = 1024 * 1024


class Upload:
    def __init__(self, path, config: FilesConfig | None = None) -> None:
        self.store = FileStore(path, config or FilesConfig(), time.time, DiskThreads("a"))
        self.partial = self.store.new_partial()
        size = self.store.config.max_file_size
        self.reader = FormReader(CONTENT_TYPE, self.partial, size)
        self.closed = asyncio.Event()
        self.changed = asyncio.Event()
        threads, shares = self.store.threads, self.store.bytes
        self.sink = UploadSink(threads, shares, self.reader, self.closed.set, OPENAI)
        self.sink.on_change = self.changed.set

    async def close(self) -> None:
        self.sink.close()
        self.sink.close()
        await self.closed.wait()
        assert not self.partial.exists()
        assert self.store.num_bytes == 0
        self.store.close()


async def test_upload_pauses_while_the_disk_is_busy(tmp_path) -> None:
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
    ("body", "config", "status", "message", "param"),
    [
        (b"no form at all", FilesConfig(), 400, "cannot be read", None),
        (form(file=b"x" * 11), FilesConfig(max_file_size=10), 413, "larger than 10 bytes", "file"),
        (form(), FilesConfig(max_files_size=10), 413, "more than 10 bytes", None),
        (form({"purpose": "x" * 10_000}), FilesConfig(), 400, "must have at most", "purpose"),
    ],
)
async def test_upload_fault_is_reported_before_the_body_ends(
    tmp_path, body, config, status, message, param
) -> None:
    upload = Upload(tmp_path, config)
    upload.sink.write(body)
    await upload.changed.wait()
    error = msgspec.json.decode(upload.sink.fault.body)["error"]
    assert upload.sink.fault.status == status
    assert message in error["message"]
    assert error["param"] == param
    upload.sink.write(b"more")
    with pytest.raises(RequestError, match=message):
        await upload.sink.form()
    await upload.close()


async def test_upload_to_a_full_disk_is_unavailable(tmp_path, caplog) -> None:
    upload = Upload(tmp_path)

    def fail(pieces) -> None:
        raise OSError(28, "No space left on device")

    upload.reader.feed = fail
    upload.sink.write(b"x")
    await upload.changed.wait()
    assert upload.sink.fault.status == 503
    assert b"the file cannot be stored: No space left on device" in upload.sink.fault.body
    with pytest.raises(StateFailed):
        await upload.sink.form()
    assert "No space left" in caplog.text
    await upload.close()


async def test_upload_that_is_cancelled_at_its_end_closes_its_file(tmp_path, monkeypatch) -> None:
    upload = Upload(tmp_path)
    upload.sink.write(form({"purpose": "batch"}))
    begun, go, is_open = threading.Event(), threading.Event(), []

    def sync(descriptor: int) -> None:
        begun.set()
        go.wait()
        is_open.append(os.readlink(f"/proc/self/fd/{descriptor}") == str(upload.partial))

    monkeypatch.setattr("os.fsync", sync)
    taking = asyncio.ensure_future(upload.sink.form())
    async with asyncio.timeout(60):
        await asyncio.to_thread(begun.wait)
    taking.cancel()
    closing = asyncio.ensure_future(upload.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    go.set()
    await closing
    assert is_open == [True]
    assert upload.reader._file is None


# Contents are sent whole or in part, as fast as the client reads.


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
def test_byte_range_follows_the_range_header(asked, wanted) -> None:
    assert byte_range(asked, 10) == wanted


class Sent:
    """A stream that requests more data only when `on_writable` is called."""

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
    request = Request("GET", "/", headers=headers)
    request.open_stream = open_stream
    response = await send_content(request, record(size), path, threads)
    return response, stream, opened


async def test_large_file_is_sent_in_pieces(tmp_path) -> None:
    content = bytes(range(256)) * 4096
    (tmp_path / "a").write_bytes(content)
    response, stream, opened = await ask(tmp_path / "a", len(content))
    assert response is None
    assert stream.closed
    assert b"".join(stream.pieces) == content
    assert len(stream.pieces) == 4
    assert opened == [(200, {"Accept-Ranges": "bytes"}, len(content))]


async def test_small_file_or_range_is_sent_at_once(tmp_path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    response, *_ = await ask(tmp_path / "a", 10)
    assert (response.status, response.body) == (200, b"0123456789")
    response, *_ = await ask(tmp_path / "a", 10, "bytes=2-3")
    assert (response.status, response.body) == (206, b"23")
    assert dict(response.headers)["Content-Range"] == "bytes 2-3/10"
    response, *_ = await ask(tmp_path / "a", 10, "bytes=10-")
    assert (response.status, dict(response.headers)["Content-Range"]) == (416, "bytes */10")


async def test_unreadable_file_is_not_found_or_a_failure(tmp_path) -> None:
    with pytest.raises(NotFound, match="No such File object: file-1"):
        await ask(tmp_path / "a", 10)
    with pytest.raises(StateFailed, match="cannot be read: it is not a regular file"):
        await ask(tmp_path, 10)


def num_open(path) -> int:
    """Returns the number of descriptors of a file."""
    num = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            num += os.readlink(link) == str(path)
        except FileNotFoundError:
            continue  # that of the directory itself
    return num


@pytest.mark.parametrize("call", ["open", "pread"])
async def test_cancelled_read_closes_its_descriptor(tmp_path, monkeypatch, call: str) -> None:
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
    async with asyncio.timeout(60):
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


# The endpoints of files, used by OpenAI's client over a real connection.


ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
EXPIRES = {"purpose": "batch", ANCHOR: "created_at", SECONDS: "3600"}
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


@dataclass
class Site:
    server: HttpServer
    store: FileStore | None
    url: str

    def client(self, prefix: str = "/v1") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url + prefix, api_key="a", max_retries=0)

    @property
    def partial(self) -> list:
        return list(self.store._partial.iterdir())


@pytest.fixture
async def start(tmp_path):
    sites = []

    async def begin(*, keeps: bool = True, **limits) -> Site:
        router = Router()
        store = None
        if keeps:
            config = FilesConfig(**limits)
            store = FileStore(tmp_path / "files", config, time.time, DiskThreads("files"))
        kept = StatePart("files", store, "no reason")
        ids = itertools.count()
        files = Files(kept, lambda: f"{next(ids):032x}", time.time)
        endpoints = BatchEndpoints(router, None, 10)
        none = StatePart("batches", None, "no reason")
        batches = Batches(kept, none, endpoints, BodyReader(), lambda: "x", time.time)
        add_batch_routes(router, files, batches)
        server = HttpServer(
            HttpConfig(port=0, max_body=1024, linger_timeout=0.1, close_timeout=0.1),
            Dispatcher(router, render_error, checks=[JsonOnly(render_error, FORMS)]),
        )
        await server.start()
        port = server.addresses[0].rpartition(":")[2]
        sites.append(Site(server, store, f"http://127.0.0.1:{port}"))
        return sites[-1]

    yield begin
    for site in sites:
        await site.server.close()
        if site.store is not None:
            site.store.check()
            site.store.close()


@pytest.mark.parametrize("prefix", ["/v1", "/v3", "/v3/v1"])
async def test_openai_client_manages_files(start, prefix: str) -> None:
    site = await start()
    content = b'{"a":1}\n' * 100_000  # many times the maximum size of a body
    async with site.client(prefix) as client:
        first = await client.files.create(file=("../a.jsonl", content), purpose="batch")
        second = await client.files.create(
            file=b"x",
            purpose="user_data",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert (first.filename, first.bytes) == ("../a.jsonl", len(content))
        assert first.expires_at - first.created_at == 30 * 24 * 3600
        assert second.expires_at - second.created_at == 3600
        assert await client.files.retrieve(first.id) == first
        assert (await client.files.content(first.id)).read() == content
        listed = [file.id async for file in client.files.list(limit=1, order="asc")]
        assert listed == [first.id, second.id]
        found = await client.files.list(purpose="user_data")
        assert [file.id for file in found.data] == [second.id]
        assert (await client.files.delete(first.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.content(first.id)
    assert site.partial == []


async def test_file_endpoints_refuse_invalid_forms_and_queries(start) -> None:
    site = await start(max_files=1, max_file_size=100)
    async with httpx2.AsyncClient() as client:
        url = f"{site.url}/v1/files"
        good = form({"purpose": "batch"})
        for body, headers, status, message in (
            (form({"purpose": "x"}), FORM, 400, "purpose must be one of"),
            (form({"purpose": "batch"}, None), FORM, 400, "file is required"),
            (form({**EXPIRES, SECONDS: "3599"}), FORM, 400, "expires_after.seconds must be"),
            (form({**EXPIRES, ANCHOR: "used"}), FORM, 400, "expires_after.anchor must be"),
            (b"{}", {"Content-Type": "application/json"}, 400, "multipart/form-data"),
            (form({"purpose": "batch"}, b"x" * 101), FORM, 413, "larger than 100 bytes"),
            (form({"purpose": "batch"}, b"x" * 70_000), FORM, 413, "larger than"),
            (good, FORM, 200, '"id"'),
            (good, FORM, 400, "you have 1 stored files"),
        ):
            answer = await client.post(url, content=body, headers=headers)
            assert (answer.status_code, message in answer.text) == (status, True), answer.text
        for query in ("limit=0", "order=x", "purpose=x", "after=x"):
            assert (await client.get(f"{url}?{query}")).status_code == 400
        [stored] = (await client.get(url)).json()["data"]
        content = f"{url}/{stored['id']}/content"
        ranged = await client.get(content, headers={"Range": "bytes=0-0"})
        assert (ranged.status_code, ranged.content) == (206, b"{")


async def test_upload_of_a_disconnected_client_is_deleted(start) -> None:
    site = await start()
    _, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    writer.write(
        b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n"
        b"Content-Type: multipart/form-data; boundary=xyz\r\n\r\n" + form(file=b"x" * 5000)[:4000]
    )
    while not site.partial:  # noqa: ASYNC110 (a thread makes it)
        await asyncio.sleep(0.001)
    writer.close()
    while site.partial or site.store.num_bytes:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("num_syncs", [0, 1, 3])  # while the upload or its record is written
async def test_upload_is_deleted_if_the_client_disconnects_while_stored(
    start, monkeypatch, num_syncs: int
) -> None:
    site = await start()
    sync, begun, go, left = os.fsync, threading.Event(), threading.Event(), [None] * num_syncs

    def wait(descriptor: int) -> None:
        if left:
            left.pop()
        else:
            begun.set()
            go.wait()
        sync(descriptor)

    monkeypatch.setattr("os.fsync", wait)
    _, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    body = form({"purpose": "batch"})
    head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Content-Type: multipart/form-data; boundary=xyz\r\n\r\n".encode() + body)
    async with asyncio.timeout(60):
        await asyncio.to_thread(begun.wait)
        writer.close()
        while site.server.num_connections:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        go.set()
        while site.server.num_requests or len(site.store):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await site.server.close()
    await site.store.threads.close()
    assert site.store.num_bytes == 0
    directory = site.store._contents.parent
    assert [path.name for path in directory.rglob("*") if path.is_file()] == ["lock"]


async def test_file_that_cannot_be_deleted_is_kept(start, monkeypatch) -> None:
    site = await start()
    async with site.client() as client:
        file = await client.files.create(file=b"x", purpose="batch")
        with monkeypatch.context() as patched:
            patched.setattr(site.store, "_erase", lambda id: os.unlink("/dev/null/x"))
            with pytest.raises(openai.InternalServerError, match="cannot be deleted"):
                await client.files.delete(file.id)
        assert await client.files.retrieve(file.id) == file
        site.store.path_of(file.id).unlink()
        with pytest.raises(openai.NotFoundError, match="No such File object"):
            await client.files.content(file.id)
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.delete(file.id)


async def test_server_without_a_directory_stores_no_files(start) -> None:
    site = await start(keeps=False)
    async with site.client() as client:
        for call in (
            client.files.list(),
            client.files.create(file=b"x", purpose="batch"),
            client.batches.list(),
            client.batches.create(
                input_file_id="a", endpoint="/v1/completions", completion_window="24h"
            ),
        ):
            with pytest.raises(
                openai.BadRequestError, match=r"does not store (files|batches): no reason"
            ):
                await call


FORM_ROWS = {
    field: values
    for field, values in of_files_and_batches().items()
    if field == "purpose" or "[" in field
}


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["/v1", "/v3", "/v3/v1"])
async def test_documented_form_values_are_accepted_or_refused(start, prefix: str) -> None:
    assert set(FORM_ROWS) == {"purpose", "expires_after[anchor]", "expires_after[seconds]"}
    site = await start()
    async with httpx2.AsyncClient() as client:
        for field, (taken, refused) in FORM_ROWS.items():
            for members in (*taken, *refused):
                body = form({"purpose": "batch", **members})
                answer = await client.post(f"{site.url}{prefix}/files", content=body, headers=FORM)
                assert answer.status_code == (200 if members in taken else 400), members
                if members in refused:
                    named = field.replace("[", ".").rstrip("]")
                    assert named in answer.text.replace("[", "."), members
