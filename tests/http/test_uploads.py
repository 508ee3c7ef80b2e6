"""Tests of bodies that a sink receives instead of memory."""

from __future__ import annotations

import asyncio

import pytest

from fastovms.http.messages import Request, Response, UploadHandler
from tests.http.client import talk
from tests.http.conftest import Start


class Sink:
    """Receives a body, and is full from `room` bytes on until it is drained."""

    def __init__(self, room: int = 10**9, max_size: int = 10**9) -> None:
        self.max_size = max_size
        self.min_rate = 1.0
        self.fault: Response | None = None
        self.on_change = None
        self.room = room
        self.size = 0
        self.num_closed = 0
        self.filled = asyncio.Event()
        self.closed = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return self.size > self.room

    def write(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.is_full:
            self.filled.set()

    def close(self) -> None:
        self.closed.set()


def post(size: int, *fields: str) -> bytes:
    lines = ["POST /upload HTTP/1.1", "Host: a", f"Content-Length: {size}", *fields, "", ""]
    return "\r\n".join(lines).encode()


async def serve(start: Start, *sinks: Sink | Response):
    waiting = list(sinks)
    running = await start(max_body=1000, max_buffered_bodies=2000)

    async def answer(request: Request) -> Response:
        return Response(200, str(request.sink.size).encode(), "text/plain")

    handler = UploadHandler(lambda request: waiting.pop(0), answer)
    running.site.router.add("POST", "/upload", handler)
    return running


async def test_upload_may_be_larger_than_a_body_in_memory(start: Start) -> None:
    sink, other = Sink(), Sink()
    running = await serve(start, sink, other)
    requests = post(5000) + b"x" * 5000 + post(7) + b"x" * 7
    answers = (await talk(running.port, requests, answers=2)).answers()
    assert [answer.body for answer in answers] == [b"5000", b"7"]
    await sink.closed.wait()
    await other.closed.wait()


async def test_full_sink_pauses_reading_of_the_body(start: Start) -> None:
    sink = Sink(room=100_000)
    running = await serve(start, sink)
    size = 50_000_000
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(post(size))
    writer.write(b"x" * size)
    await sink.filled.wait()
    before = sink.size
    for _ in range(50):
        await asyncio.sleep(0)
    assert sink.size == before < size
    sink.room = 10**9
    sink.on_change()
    assert b"%d" % size in await reader.readuntil(b"%d" % size)
    writer.close()


@pytest.mark.parametrize(
    ("sink", "status"),
    [(Sink(max_size=10), 413), (Response(403, b"no"), 403)],
    ids=["too large", "refused"],
)
async def test_upload_is_refused_by_its_head(start: Start, sink, status: int) -> None:
    running = await serve(start, sink)
    (answer,) = (await talk(running.port, post(70_000), answers=1)).answers()
    assert answer.status == status


async def test_fault_of_the_sink_ends_the_upload(start: Start) -> None:
    sink = Sink(room=100)
    running = await serve(start, sink)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(post(1_000_000) + b"x" * 1000)
    await sink.filled.wait()
    sink.fault = Response(400, b"broken")
    sink.on_change()
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"broken" in answer
    await sink.closed.wait()
    writer.close()


async def test_sink_is_closed_if_the_client_disconnects(start: Start) -> None:
    sink = Sink(room=100)
    running = await serve(start, sink)
    _, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(post(1000) + b"x" * 500)
    await sink.filled.wait()
    writer.close()
    sink.on_change()  # the rest is not read before that
    await sink.closed.wait()
