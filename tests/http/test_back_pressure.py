"""A connection's back-pressure, streams and last answers, on a fake transport and clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fastovms.http.routing.messages import Request, Response
from tests.http.bench import Bench, statuses, ticks
from tests.http.client import Conversation
from tests.http.fake_transport import VirtualLoop
from tests.http.more_cases import get

loop_factory = VirtualLoop

# Back-pressure


async def test_a_client_that_stops_reading_is_cut() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.room = 0
    transport.receive(get("/large") + get("/large") * 3)
    await ticks()
    assert len(transport.buffer) < 400_000, "the second answer waits until there is room"
    await asyncio.sleep(59)
    assert not transport.lost
    await asyncio.sleep(2)
    assert transport.aborted
    assert bench.state.body_budget.used == 0


async def test_a_client_that_reads_slowly_is_served() -> None:
    transport = Bench().connect()
    transport.room = 0
    transport.receive(get("/large") * 2)
    for _ in range(60):
        await asyncio.sleep(50)
        transport.take(10_000)
    transport.take(None)
    await ticks()
    assert statuses(transport) == [200, 200]
    assert not transport.aborted


async def test_a_stream_says_when_it_is_writable() -> None:
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


async def test_a_stream_nobody_reads_is_cut_at_its_bound() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.room = 0
    transport.receive(get("/stream"))
    await ticks()
    for _ in range(20):
        bench.streams[0].send(b"x" * 100_000)
    assert transport.aborted
    await ticks()
    assert bench.cancelled == 1
    assert bench.streams[0].closed
    assert bench.exchanges[0].completed is False


async def test_a_stalled_stream_is_cut_at_its_deadline() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.room = 0
    transport.receive(get("/stream"))
    await ticks()
    bench.streams[0].send(b"x" * 100_000)
    await asyncio.sleep(61)
    assert transport.aborted
    assert bench.cancelled == 1


async def test_closing_towards_a_client_that_does_not_read() -> None:
    transport = Bench().connect()
    transport.room = 0
    transport.receive(get("/large", "Connection: close"))
    await ticks()
    assert transport.closing
    assert not transport.lost
    await asyncio.sleep(5.1)
    assert transport.aborted


async def test_a_last_answer_may_take_its_time() -> None:
    transport = Bench().connect()
    transport.room = 0
    transport.receive(get("/large", "Connection: close"))
    await ticks()
    while not transport.lost:
        await asyncio.sleep(4)
        transport.take(10_000)
        await ticks()
    assert statuses(transport) == [200]
    assert not transport.aborted


# Streams


async def test_pings_while_a_stream_is_silent() -> None:
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


async def test_no_pings_to_a_client_that_does_not_read() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.room = 0
    transport.receive(get("/stream"))
    await ticks()
    bench.streams[0].send(b"x" * 70_000)
    await asyncio.sleep(50)
    assert b"ping" not in transport.buffer


@pytest.mark.parametrize("kind", ["text/plain", "text/event-stream"])
async def test_no_pings_where_none_are_wanted(kind: str) -> None:
    bench = Bench()

    async def handler(request: Request) -> Response | None:
        bench.streams.append(request.stream(content_type=kind, ping=kind == "text/plain"))
        return await bench.wait(request)

    bench.state.dispatcher._router.add("GET", "/quiet", handler)
    transport = bench.connect()
    transport.receive(get("/quiet"))
    await asyncio.sleep(100)
    assert transport.sent == b""


# Draining


async def test_drain_closes_idle_connections_after_a_grace() -> None:
    bench = Bench()
    idle, fresh = bench.connect(), bench.connect()
    idle.receive(get())
    await ticks()
    bench.state.draining = True
    for connection in list(bench.state.connections):
        connection.drain()
    await asyncio.sleep(0.9)
    idle.receive(get())  # was on its way
    await ticks()
    last = Conversation(idle.sent, closed=True).answers()[-1]
    assert last.headers["connection"] == "close"
    assert idle.lost
    assert not fresh.closing
    fresh.receive(get())
    await ticks()
    assert b"Connection: close\r\n" in fresh.sent
    assert fresh.lost


async def test_drain_lets_a_stream_end() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.receive(get("/stream"))
    await ticks()
    stream = bench.streams[0]
    stream.send(b"data: 1\n\n")
    bench.state.draining = True
    next(iter(bench.state.connections)).drain()
    await asyncio.sleep(20)
    stream.finish(b"data: 2\n\n")
    bench.waits[0].set_result(None)
    await asyncio.sleep(1.1)
    answer: Any = Conversation(transport.sent, closed=True).answers()[0]
    assert answer.body.startswith(b"data: 1\n\n")
    assert answer.body.endswith(b"data: 2\n\n")
    assert transport.lost
