"""Tests of `fastovms/http/protocol.py`."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import random
from typing import Any

import pytest

from fastovms.http.messages import Response
from tests.http.bench import CONFIG, Bench, statuses, ticks
from tests.http.client import Conversation
from tests.http.fake_transport import VirtualLoop
from tests.http.more_cases import chunked, get, post

# How long a connection waits for heads, bodies and the next request, with a virtual clock.


loop_factory = VirtualLoop


async def test_silent_connection_is_closed_without_an_answer() -> None:
    transport = Bench().connect()
    await asyncio.sleep(9.9)
    assert not transport.closing
    await asyncio.sleep(0.2)
    assert transport.lost
    assert transport.sent == b""


async def test_a_dripping_head_gets_408_at_its_deadline() -> None:
    transport = Bench().connect()
    await asyncio.sleep(5)
    for byte in get("/health", "X-A: " + "b" * 50)[:9]:
        transport.receive(bytes([byte]))
        await asyncio.sleep(1)
    assert transport.sent == b""
    await asyncio.sleep(1.1)
    assert statuses(transport) == [408]
    assert transport.eof
    transport.receive(b"X-More: input\r\n")
    await asyncio.sleep(2.1)
    assert transport.lost


async def test_each_head_has_its_own_deadline() -> None:
    transport = Bench().connect()
    transport.receive(get())
    await asyncio.sleep(74)
    transport.receive(b"G")
    await asyncio.sleep(9.9)
    assert statuses(transport) == [200]
    await asyncio.sleep(0.2)
    assert statuses(transport) == [200, 408]


async def test_an_idle_connection_is_closed_silently() -> None:
    transport = Bench().connect()
    for _ in range(3):
        transport.receive(get())
        await asyncio.sleep(74.9)
    assert not transport.lost
    transport.receive(b"\r\n")  # blank lines do not count as a request
    await asyncio.sleep(0.2)
    assert transport.lost
    assert statuses(transport) == [200] * 3


async def test_a_dripping_body_gets_408() -> None:
    transport = Bench().connect()
    transport.receive(post(b"x" * 1000)[:-1000])
    for _ in range(59):
        transport.receive(b"x")
        await asyncio.sleep(1)
    assert transport.sent == b""
    await asyncio.sleep(1.7)  # 59 bytes at 100 bytes a second
    assert statuses(transport) == [408]
    assert transport.eof


async def test_large_body_at_the_least_rate_is_read() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.receive(post(b"x" * 10_000)[:-10_000])
    for _ in range(100):
        await asyncio.sleep(1.5)
        transport.receive(b"x" * 100)
    await ticks()
    assert statuses(transport) == [200]
    assert bench.state.body_budget.used == 0


async def test_a_running_handler_has_no_deadline() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.receive(get("/wait"))
    await asyncio.sleep(10_000)
    bench.waits[0].set_result(Response(200, b"late"))
    await ticks()
    assert statuses(transport) == [200]
    assert not transport.closing


async def test_a_ping_does_not_start_the_stream_of_a_handler_that_has_returned() -> None:
    """Both are due in the same iteration of the event loop."""
    bench = Bench()
    transport = bench.connect()
    transport.receive(get("/stream"))
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)

    def answer() -> None:
        loop._clock.now += 1
        bench.waits[0].set_result(Response(503, b"late"))

    loop.call_later(CONFIG.ping_interval - 0.5, answer)
    await asyncio.sleep(CONFIG.ping_interval + 2)
    assert statuses(transport) == [503]


async def test_a_half_pipelined_request_times_out_behind_the_running_one() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.receive(get("/wait") + b"GET")
    await asyncio.sleep(20)
    assert transport.sent == b""
    bench.waits[0].set_result(Response(200, b"late"))
    await ticks()
    assert statuses(transport) == [200, 408]
    assert bench.cancelled == 0


async def test_many_requests_set_few_timers() -> None:
    transport = Bench().connect()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    before = loop.num_timers
    for _ in range(1000):
        transport.receive(get())
    assert loop.num_timers == before


# Turns


async def test_answers_of_one_pass_are_written_together() -> None:
    transport = Bench().connect()
    transport.receive(get() * 10)
    await ticks()
    assert transport.num_writes == 1
    assert statuses(transport) == [200] * 10


async def test_pipelined_requests_beyond_the_limit_get_503() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.receive(get("/wait") + get() * 6)
    transport.receive(get() * 100)
    await ticks()
    assert transport.sent == b""
    bench.waits[0].set_result(Response(200, b"late"))
    await ticks()
    assert statuses(transport) == [200, 200, 200, 200, 200, 503]
    assert transport.eof


async def test_flood_behind_a_running_request_aborts_the_connection() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.receive(get("/wait") + b"garbage\r\n\r\n")
    piece = b"x" * 1000
    for _ in range(CONFIG.max_body // len(piece)):
        transport.receive(piece)
    assert not transport.aborted
    transport.receive(piece)
    await ticks()
    assert transport.aborted
    assert bench.cancelled == 1


async def test_interim_continue_waits_for_the_answer_before_it() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.receive(get("/wait") + post(b"x", "Expect: 100-continue")[:-1])
    await ticks()
    assert transport.sent == b""
    bench.waits[0].set_result(Response(200, b"late"))
    await ticks()
    assert transport.sent.endswith(b"lateHTTP/1.1 100 Continue\r\n\r\n")
    transport.receive(b"x")
    await ticks()
    assert statuses(transport) == [200, 200]


async def test_connection_beyond_the_limit_gets_503() -> None:
    bench = Bench()
    kept = [bench.connect(), bench.connect()]
    refused = bench.connect()
    await ticks()
    assert statuses(refused) == [503]
    assert b"Retry-After: 1\r\n" in refused.sent
    await asyncio.sleep(2.1)
    assert refused.lost
    kept[0].receive(get())
    await ticks()
    assert statuses(kept[0]) == [200]


async def test_a_refused_upload_is_read_on_for_a_while() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.receive(post(b"x" * 100_000, target="/nothing")[:-90_000])
    await ticks()
    assert statuses(transport) == [404]
    assert transport.eof
    assert not transport.closing
    transport.receive(b"x" * 90_000)
    transport.receive_eof()
    await ticks()
    assert transport.lost
    assert bench.state.body_budget.used == 0


# The client disconnects


async def test_end_of_input_cancels_the_running_handler() -> None:
    bench = Bench()
    transport = bench.connect()
    transport.receive(get("/wait") + get("/wait"))
    await ticks()
    transport.receive_eof()
    await ticks(2)
    assert bench.cancelled == 1
    assert len(bench.waits) == 1, "the request behind it is not begun"
    assert [exchange.status for exchange in bench.exchanges] == [499]


async def test_bodies_of_lost_connections_are_given_back() -> None:
    bench = Bench()
    transport = bench.connect()
    body = post(b"x" * 1000).replace(b"POST /echo", b"GET /wait")
    transport.receive(body + body + body[:-1])
    assert bench.state.body_budget.used == 2999
    await ticks()
    transport.abort()
    await ticks()
    assert bench.state.body_budget.used == 0


async def test_slow_bodies_of_one_client_leave_room_for_others() -> None:
    bench = Bench(dataclasses.replace(CONFIG, max_buffered_bodies=10_000, max_connections=100))
    slow = [bench.connect("192.0.2.1") for _ in range(20)]
    for transport in slow:
        transport.receive(post(b"x" * 1000)[:-1])
    assert [status for transport in slow for status in statuses(transport)] == [503] * 15
    assert bench.state.body_budget.used < 5_000
    for address in ("192.0.2.2", "2001:db8::1"):
        other = bench.connect(address)
        other.receive(post(b"x" * 1000))
        await ticks()
        assert statuses(other) == [200]
    for transport in slow:
        transport.receive(b"x")
        transport.receive_eof()
    await ticks()
    bench.state.body_budget.check()
    assert bench.state.body_budget.used == 0


# Noise


@pytest.mark.slow
async def test_noise_gets_one_answer_at_most_and_leaves_no_connection() -> None:
    """Never a 500, and no connection remains."""
    bench = Bench(dataclasses.replace(CONFIG, max_connections=100))
    noise = random.Random(11)
    beginnings = [b"", b"", get()[:-2], post(b"12345")[:-7], get()[:16], chunked(b"5\r\nhello\r\n")]
    connections = []
    for number in range(10_000):
        transport = bench.connect()
        transport.receive(noise.choice(beginnings) + noise.randbytes(noise.randrange(1, 60)))
        connections.append(transport)
        if number % 50 == 49:
            for open_one in connections:
                if not open_one.lost:
                    open_one.receive_eof()
            await ticks()
            for done in connections:
                assert len(statuses(done)) <= 1
                assert done.lost
            connections.clear()
    assert not bench.state.connections
    assert not bench.state.tasks
    assert bench.state.body_budget.used == 0
    assert {exchange.status for exchange in bench.exchanges} <= {200, 400, 404, 501, 505}


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


async def test_drain_waits_for_a_running_stream() -> None:
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


@pytest.mark.parametrize(
    ("error", "status"),
    [(OSError(errno.EMFILE, "Too many open files"), 503), (MemoryError(), 503), (OSError(), 500)],
)
async def test_handler_that_lacks_resources_gets_503(error: Exception, status: int) -> None:
    bench = Bench()
    transport = bench.connect()
    transport.receive(get("/wait"))
    await ticks()
    bench.waits[0].set_exception(error)
    await ticks()
    assert statuses(transport) == [status]
