"""Tests of streams: when they are writable, and what is sent during pauses."""

from __future__ import annotations

import asyncio

import pytest

from fastovms.http.messages import Request, Response
from tests.http.bench import Bench, ticks
from tests.http.fake_transport import VirtualLoop
from tests.http.more_cases import get

loop_factory = VirtualLoop


async def test_stream_reports_when_it_is_writable() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.room = 0
    transport.receive(get("/stream"))
    await ticks()
    stream = bench.streams[0]
    calls: list[bool] = []
    stream.on_writable = lambda: calls.append(stream.writable)
    assert stream.writable
    stream.send(b"x" * 100_000)
    assert not stream.writable
    assert stream.buffered > 100_000
    transport.take(50_000)
    assert not calls
    transport.take(None)
    assert calls == [True]
    assert stream.buffered == 0


async def test_silent_stream_sends_pings() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.receive(get("/stream"))
    await asyncio.sleep(14.9)
    assert transport.sent == b""
    await asyncio.sleep(0.2)
    assert transport.sent.startswith(b"HTTP/1.1 200 OK\r\n")
    assert transport.sent.endswith(b"8\r\n: ping\n\n\r\n")
    await asyncio.sleep(10)  # at 25.1 s
    bench.streams[0].send(b"data: 1\n\n")
    await asyncio.sleep(14.8)
    assert transport.sent.count(b"ping") == 1
    await asyncio.sleep(0.2)
    assert transport.sent.count(b"ping") == 2
    bench.streams[0].finish()
    bench.waits[0].set_result(None)
    await asyncio.sleep(60)
    assert transport.sent.count(b"ping") == 2


async def test_client_that_does_not_read_gets_no_pings() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.room = 0
    transport.receive(get("/stream"))
    await ticks()
    bench.streams[0].send(b"x" * 70_000)
    await asyncio.sleep(50)
    assert b"ping" not in transport.buffer


@pytest.mark.parametrize("kind", ["text/plain", "text/event-stream"])
async def test_stream_without_pings_stays_silent(kind: str) -> None:
    bench = Bench()

    async def handler(request: Request) -> Response | None:
        bench.streams.append(request.stream(content_type=kind, ping=kind == "text/plain"))
        return await bench.wait(request)

    bench.state.dispatcher._router.add("GET", "/quiet", handler)
    transport = bench.connect()
    transport.receive(get("/quiet"))
    await asyncio.sleep(100)
    assert transport.sent == b""


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_stream_of_a_known_length_leaves_the_connection_open(
    version: str, method: str
) -> None:
    bench = Bench()

    async def handler(request: Request) -> None:
        stream = request.stream(content_type="text/plain", length=4)
        stream.send(b"ab")
        stream.finish(b"cd")

    bench.state.dispatcher._router.add("GET", "/sized", handler)
    transport = bench.connect()
    asked = get("/sized", "Connection: keep-alive", version=version)
    transport.receive(asked.replace(b"GET", method.encode(), 1) * 2)
    await ticks()
    heads = [part.partition(b"\r\n\r\n") for part in transport.sent.split(b"HTTP/1.1 200 OK")[1:]]
    assert [body for _, _, body in heads] == [b"abcd" if method == "GET" else b""] * 2
    for head, _, _ in heads:
        assert head.count(b"Content-Length: 4\r\n") == 1
        assert b"chunked" not in head
    assert not transport.closing
