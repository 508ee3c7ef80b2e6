"""Tests of `fastovms/http/wire.py`."""

from __future__ import annotations

import asyncio

import pytest

from fastovms.http.wire import Deadline
from tests.http.bench import Bench, statuses, ticks
from tests.http.fake_transport import VirtualLoop
from tests.http.more_cases import get


@pytest.fixture
async def deadline() -> tuple[Deadline, list[float]]:
    """Returns a deadline, and the times at which it has called."""
    loop, calls = asyncio.get_running_loop(), []
    start = loop.time()
    return Deadline(loop, lambda: calls.append(round(loop.time() - start))), calls


@pytest.mark.parametrize(
    ("moves", "expected"),
    [([5], [5]), ([5, 6, 7], [7]), ([50, 2], [2]), ([2, None], []), ([2, None, 12], [12])],
    ids=["set", "moved back", "moved forward", "cleared", "set again"],
)
async def test_deadline_calls_once_at_the_time_it_was_set_to_last(deadline, moves, expected):
    timer, calls = deadline
    now = asyncio.get_running_loop().time()
    for seconds in moves:
        if seconds is None:
            timer.clear()
        else:
            timer.set(now + seconds)
    await asyncio.sleep(60)
    assert calls == expected


loop_factory = VirtualLoop


# Writes to a client that reads slowly or not at all, with a fake transport and clock.


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


async def test_stream_that_is_not_read_is_aborted_at_its_limit() -> None:
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


async def test_closing_connection_is_aborted_if_its_client_does_not_read() -> None:
    transport = Bench().connect()
    transport.room = 0
    transport.receive(get("/large", "Connection: close"))
    await ticks()
    assert transport.closing
    assert not transport.lost
    await asyncio.sleep(5.1)
    assert transport.aborted


async def test_last_answer_is_sent_to_a_slow_reader() -> None:
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
