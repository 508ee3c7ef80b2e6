"""Many requests that come in one pass of the loop."""

from __future__ import annotations

import asyncio
import dataclasses

from fastovms.http import Request, Response
from fastovms.http.turnstile import PASS_SECONDS, TASK_SECONDS
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
    assert bench.begun == ["0", "1", "2", "3", "4", "pipelined", "late"]
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
