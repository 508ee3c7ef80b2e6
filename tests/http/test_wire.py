"""Tests of `fastovms/http/wire.py`."""

from __future__ import annotations

import asyncio

from fastovms.http.wire import Deadline
from tests.http.bench import Bench, statuses, ticks
from tests.http.fake_transport import VirtualLoop
from tests.http.more_cases import get

# Moving a deadline is cheap, and it is still kept.


loop_factory = VirtualLoop


class Counted:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        assert isinstance(self.loop, VirtualLoop)
        self.start = self.loop.time()
        self.calls: list[float] = []
        self.deadline = Deadline(self.loop, self.call)
        self._num_timers = self.loop.num_timers

    def call(self) -> None:
        self.calls.append(round(self.loop.time() - self.start, 3))

    def set(self, seconds: float) -> None:
        self.deadline.set(self.start + seconds)

    @property
    def num_timers(self) -> int:
        assert isinstance(self.loop, VirtualLoop)
        return self.loop.num_timers - self._num_timers


async def test_it_calls_once_at_its_time() -> None:
    counted = Counted()
    counted.set(5)
    await asyncio.sleep(4.9)
    assert counted.calls == []
    await asyncio.sleep(20)
    assert counted.calls == [5]


async def test_moving_it_back_sets_no_timer() -> None:
    counted = Counted()
    for step in range(100):
        counted.set(5 + step / 100)
    assert counted.num_timers == 1
    await asyncio.sleep(20)
    assert counted.calls == [5.99]


async def test_moving_it_forward() -> None:
    counted = Counted()
    counted.set(50)
    counted.set(2)
    await asyncio.sleep(60)
    assert counted.calls == [2]


async def test_clear_and_set_again() -> None:
    counted = Counted()
    counted.set(2)
    counted.deadline.clear()
    await asyncio.sleep(10)
    assert counted.calls == []
    counted.set(12)
    await asyncio.sleep(10)
    assert counted.calls == [12]


async def test_closed_deadline_never_fires() -> None:
    counted = Counted()
    counted.set(2)
    counted.deadline.close()
    await asyncio.sleep(10)
    assert counted.calls == []


# What is written to a client that reads slowly or not at all, on a fake transport and clock.


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
