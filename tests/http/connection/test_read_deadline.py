"""How long a connection waits for heads, bodies and the next request, on a virtual clock."""

from __future__ import annotations

import asyncio

from fastovms.http.routing.messages import Response
from tests.http.bench import Bench, statuses, ticks
from tests.http.fake_transport import VirtualLoop
from tests.http.more_cases import get, post

loop_factory = VirtualLoop


async def test_a_silent_connection_is_closed_without_a_word() -> None:
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


async def test_the_second_head_has_its_own_deadline() -> None:
    transport = Bench().connect()
    transport.receive(get())
    await asyncio.sleep(74)
    transport.receive(b"G")
    await asyncio.sleep(9.9)
    assert statuses(transport) == [200]
    await asyncio.sleep(0.2)
    assert statuses(transport) == [200, 408]


async def test_two_dripping_heads_in_a_row_are_timed_apart() -> None:
    transport = Bench().connect()
    request = get()
    for _ in range(3):
        transport.receive(request[:10])
        await asyncio.sleep(8)
        transport.receive(request[10:])
    await ticks()
    assert statuses(transport) == [200] * 3


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


async def test_a_large_body_may_take_its_time() -> None:
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
