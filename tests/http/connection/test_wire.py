"""What is written to a client that reads slowly or not at all, on a fake transport and clock."""

from __future__ import annotations

import asyncio

from tests.http.bench import Bench, statuses, ticks
from tests.http.fake_transport import VirtualLoop
from tests.http.more_cases import get

loop_factory = VirtualLoop


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
