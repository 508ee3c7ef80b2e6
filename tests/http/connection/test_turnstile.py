"""Many requests that come in one pass of the loop."""

from __future__ import annotations

import asyncio
import dataclasses

from fastovms.http import Request, Response
from fastovms.http.connection.turnstile import PASS_SECONDS, READ_SECONDS, TASK_SECONDS
from tests.http.bench import CONFIG, Bench, statuses, ticks
from tests.http.more_cases import get, post


class SlowBench(Bench):
    """Two requests to `/slow` take more than a pass has."""

    def __init__(self) -> None:
        super().__init__(dataclasses.replace(CONFIG, max_connections=100))
        self.begun: list[str] = []
        self.state.dispatcher._router.add("POST", "/slow/{name}", self.slow)

    def slow(self, request: Request) -> Response:
        self.begun.append(request.path_params["name"])
        self.now += 0.6 * PASS_SECONDS
        return Response(200)


async def test_they_begin_in_several_passes_and_in_order() -> None:
    bench = SlowBench()
    transports = [bench.connect() for _ in range(7)]
    for number, transport in enumerate(transports):
        transport.receive(post(b"x", target=f"/slow/{number}"))
    for num_begun in (2, 4, 6, 7):
        assert bench.begun == list("0123456")[:num_begun]
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [statuses(transport) for transport in transports] == [[200]] * 7
    transports[0].receive(post(b"x", target="/slow/later"))
    assert bench.begun[-1] == "later"
    assert bench.state.body_budget.used == 0


async def test_tasks_are_counted_although_they_run_later() -> None:
    """Their first steps would otherwise all fall into one pass."""
    bench = SlowBench()
    num_at_once = round(PASS_SECONDS / TASK_SECONDS)
    for _ in range(num_at_once + 5):
        bench.connect().receive(get("/wait"))
    await asyncio.sleep(0)
    assert len(bench.waits) == num_at_once
    await ticks()
    assert len(bench.waits) == num_at_once + 5
    for future in bench.waits:
        future.set_result(Response(200))
    await ticks()


async def test_what_comes_later_does_not_overtake() -> None:
    bench = SlowBench()
    transports = [bench.connect() for _ in range(6)]
    for number, transport in enumerate(transports[:5]):
        transport.receive(post(b"x", target=f"/slow/{number}"))
    await asyncio.sleep(0)
    transports[5].receive(post(b"x", target="/slow/late"))
    transports[4].receive(post(b"x", target="/slow/pipelined"))
    for _ in range(3):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.begun == ["0", "1", "2", "3", "4", "late", "pipelined"]
    assert statuses(transports[4]) == [200, 200]


async def test_a_client_that_leaves_before_its_turn() -> None:
    bench = SlowBench()
    transports = [bench.connect() for _ in range(4)]
    for number, transport in enumerate(transports):
        transport.receive(post(b"x", target=f"/slow/{number}"))
    transports[2].receive_eof()
    for _ in range(3):
        await asyncio.sleep(0)
    assert bench.begun == ["0", "1", "3"]
    assert bench.state.body_budget.used == 0


async def test_the_usual_request_begins_at_once() -> None:
    bench = SlowBench()
    transport = bench.connect()
    for _ in range(3):
        transport.receive(get())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not bench.state.turnstile._waiting
    assert statuses(transport) == [200] * 3


async def test_large_bodies_are_read_in_several_passes_and_in_turn() -> None:
    """A pass would otherwise read from each as much as the kernel has."""
    bench = SlowBench()
    num_at_once = round(PASS_SECONDS / READ_SECONDS)
    transports = [bench.connect() for _ in range(2 * num_at_once + 5)]
    whole = post(b"x" * 500_000, target="/slow/large")
    assert bench.state.read_turnstile.is_open
    bench.now += PASS_SECONDS
    for transport in transports:
        transport.receive(whole[:300_000])
        assert not transport.is_reading()
    for num_read_on in (num_at_once, 2 * num_at_once, 2 * num_at_once + 5):
        await asyncio.sleep(0)
        assert [transport.is_reading() for transport in transports] == [
            number < num_read_on for number in range(len(transports))
        ]
    for transport in transports:
        transport.receive(whole[300_000:])
    for _ in transports:
        await asyncio.sleep(0)
    assert [statuses(transport) for transport in transports] == [[200]] * len(transports)


async def test_a_connection_may_end_while_its_body_waits() -> None:
    bench = SlowBench()
    transport = bench.connect()
    assert bench.state.read_turnstile.is_open
    bench.now += PASS_SECONDS
    transport.receive(post(b"x" * 500_000)[:300_000])
    assert not transport.is_reading()
    transport.abort()
    await ticks()
    assert bench.state.body_budget.used == 0


async def test_small_requests_wait_for_no_large_body() -> None:
    bench = SlowBench()
    large, small = bench.connect(), bench.connect()
    assert bench.state.read_turnstile.is_open
    bench.now += PASS_SECONDS
    large.receive(post(b"x" * 500_000)[:300_000])
    small.receive(post(b"x", target="/slow/small"))
    assert bench.begun == ["small"]


async def test_requests_that_came_at_once_all_have_their_turn_and_let_others_between() -> None:
    """However slow the machine is: only what waits behind a running one is limited."""
    bench = SlowBench()
    many, other = bench.connect(), bench.connect()
    num_requests = 10 * bench.state.config.max_pipelined
    many.receive(b"".join(post(b"x", target=f"/slow/{i}") for i in range(num_requests)))
    assert not many.is_reading()
    await asyncio.sleep(0)
    other.receive(post(b"x", target="/slow/other"))
    for _ in range(num_requests):
        await asyncio.sleep(0)
    assert statuses(many) == [200] * num_requests
    assert many.is_reading()
    assert bench.begun.index("other") < 10
    assert bench.state.body_budget.used == 0
