"""The endpoints of files, used by OpenAI's client over a real connection."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from dataclasses import dataclass

import httpx2
import openai
import pytest

from fastovms.api.batches.batch_routes import UPLOAD_ROUTES, add_batch_routes
from fastovms.api.batches.batches import Batches, KeptBatches
from fastovms.api.batches.endpoints import BatchEndpoints
from fastovms.api.files.file_endpoints import Files, KeptFiles
from fastovms.api.wire.bodies.body_reader import BodyReader
from fastovms.api.wire.error_responses import render_error
from fastovms.config.files_config import FilesConfig
from fastovms.config.http_config import HttpConfig
from fastovms.files.file_store import FileStore
from fastovms.http import HttpServer, JsonOnly, Router
from fastovms.system.disk_threads import DiskThreads
from tests.api.documented_values import of_files_and_batches
from tests.api.files.forms import BOUNDARY, form

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
        kept = KeptFiles(store, "no reason")
        ids = itertools.count()
        files = Files(kept, lambda: f"{next(ids):032x}", time.time)
        endpoints = BatchEndpoints(router, None, 10)
        batches = Batches(
            kept, KeptBatches(None, "no reason"), endpoints, BodyReader(), lambda: "x", time.time
        )
        add_batch_routes(router, files, batches)
        server = HttpServer(
            HttpConfig(port=0, max_body=1024, linger_timeout=0.1, close_timeout=0.1),
            router,
            render_error=render_error,
            checks=[JsonOnly(render_error, UPLOAD_ROUTES)],
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
async def test_every_call_of_the_client(start, prefix: str) -> None:
    site = await start()
    content = b'{"a":1}\n' * 100_000  # many times what a body may be
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


CASES = [
    (form({"purpose": "x"}), FORM, 400, "purpose must be one of"),
    (form(), FORM, 400, "purpose must be one of"),
    (form({"purpose": "batch"}, None), FORM, 400, "file is required"),
    (
        form({"purpose": "batch", "expires_after[anchor]": "created_at"}),
        FORM,
        400,
        "expires_after.seconds must be",
    ),
    (b"{}", {"Content-Type": "application/json"}, 400, "multipart/form-data"),
    (b"no form", FORM, 400, "cannot be read"),
    (form({"purpose": "batch"}, b"x" * 101), FORM, 413, "larger than 100 bytes"),
    (form({"purpose": "batch"}, b"x" * 70_000), FORM, 413, "larger than"),
]


@pytest.mark.parametrize(("body", "headers", "status", "message"), CASES)
async def test_what_is_refused(start, body, headers, status, message) -> None:
    site = await start(max_file_size=100)
    async with httpx2.AsyncClient() as client:
        answer = await client.post(f"{site.url}/v1/files", content=body, headers=headers)
        assert answer.status_code == status
        assert message in answer.json()["error"]["message"]
        assert (await client.get(f"{site.url}/v1/files")).json()["data"] == []


async def test_other_bounds(start) -> None:
    site = await start(max_files=1)
    async with httpx2.AsyncClient() as client:
        url = f"{site.url}/v1/files"
        good = form({"purpose": "batch"})
        assert (await client.post(url, content=good, headers=FORM)).status_code == 200
        full = await client.post(url, content=good, headers=FORM)
        assert (full.status_code, "1 files are kept" in full.text) == (400, True)
        for query in ("limit=0", "order=x", "purpose=x", "after=x"):
            assert (await client.get(f"{url}?{query}")).status_code == 400
        ranged = await client.get(
            f"{url}/{full_id(client, site)}/content", headers={"Range": "bytes=0-0"}
        )
        assert (ranged.status_code, ranged.content) == (206, b"{")


def full_id(client, site: Site) -> str:
    [record] = site.store.list("")
    return record.id


async def test_a_client_that_leaves_leaves_nothing(start) -> None:
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


@pytest.mark.parametrize("num_syncs", [0, 1, 3])  # while the upload, or its record, is written
async def test_a_client_that_leaves_at_the_end_leaves_nothing(
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
    async with asyncio.timeout(20):
        await asyncio.to_thread(begun.wait)
        writer.close()
        while site.server.num_connections:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        go.set()
        while site.server.num_requests or site.store._records:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await site.server.close()
    await site.store.threads.close()
    assert site.store.num_bytes == 0
    directory = site.store._contents.parent
    assert [path.name for path in directory.rglob("*") if path.is_file()] == ["lock"]


async def test_a_file_that_cannot_be_deleted_is_still_there(start, monkeypatch) -> None:
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


async def test_without_a_directory(start) -> None:
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
                openai.BadRequestError, match=r"keeps no (files|batches): no reason"
            ):
                await call


FORM_ROWS = {
    field: values
    for field, values in of_files_and_batches().items()
    if field == "purpose" or "[" in field
}


@pytest.mark.parametrize("prefix", ["/v1", "/v3", "/v3/v1"])
async def test_documented_values(start, prefix: str) -> None:
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
