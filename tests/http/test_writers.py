"""Tests of `fastovms/http/writers.py`."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from fastovms.http.messages import Request, Response, StreamHead
from fastovms.http.writers import PASS_SECONDS, READ_SECONDS, TASK_SECONDS, ResponseWriter
from fastovms.telemetry.tracing import TraceContext
from tests.http.bench import CONFIG, Bench, statuses, ticks
from tests.http.client import talk
from tests.http.conftest import Start
from tests.http.more_cases import get, post

# Many requests in one iteration of the loop.


class SlowBench(Bench):
    """Two requests to `/slow` take more than the budget of an iteration."""

    def __init__(self) -> None:
        super().__init__(dataclasses.replace(CONFIG, max_connections=100))
        self.begun: list[str] = []
        self.state.dispatcher._router.add("POST", "/slow/{name}", self.slow)

    def slow(self, request: Request) -> Response:
        self.begun.append(request.path_params["name"])
        self.now += 0.6 * PASS_SECONDS
        return Response(200)


async def test_slow_requests_begin_in_several_passes_and_in_order() -> None:
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


async def test_tasks_of_one_pass_are_limited() -> None:
    """Otherwise all their first steps would run in one iteration."""
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


async def test_later_request_does_not_overtake_waiting_ones() -> None:
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


async def test_request_of_a_client_that_disconnects_is_not_begun() -> None:
    bench = SlowBench()
    transports = [bench.connect() for _ in range(4)]
    for number, transport in enumerate(transports):
        transport.receive(post(b"x", target=f"/slow/{number}"))
    transports[2].receive_eof()
    for _ in range(3):
        await asyncio.sleep(0)
    assert bench.begun == ["0", "1", "3"]
    assert bench.state.body_budget.used == 0


async def test_large_bodies_are_read_in_several_passes_and_in_turn() -> None:
    """Otherwise an iteration would read all data that the kernel has of each connection."""
    bench = SlowBench()
    num_at_once = round(PASS_SECONDS / READ_SECONDS)
    transports = [bench.connect() for _ in range(2 * num_at_once + 5)]
    whole = post(b"x" * 500_000, target="/slow/large")
    assert bench.state.read_limiter.is_open
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


async def test_small_request_begins_before_a_large_body_is_read() -> None:
    bench = SlowBench()
    large, small = bench.connect(), bench.connect()
    assert bench.state.read_limiter.is_open
    bench.now += PASS_SECONDS
    large.receive(post(b"x" * 500_000)[:300_000])
    small.receive(post(b"x", target="/slow/small"))
    assert bench.begun == ["small"]


async def test_pipelined_requests_let_those_of_other_clients_between() -> None:
    """For any speed of the machine: only requests behind a running one are limited."""
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


# The written heads.


def test_date_field_changes_once_a_second() -> None:
    now = 784111777.0
    writer = ResponseWriter(lambda: now)
    request = Request("GET", "/", id="r")
    first = writer.render(Response(200, b"x"), request, close=False)
    assert first == (
        b"HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
        b"Content-Type: application/json\r\nContent-Length: 1\r\nX-Request-Id: r\r\n"
        b"Request-Id: r\r\n\r\nx"
    )
    now += 0.2
    assert writer.render(Response(200, b"x"), request, close=False) == first
    now += 0.9
    assert b"08:49:38 GMT" in writer.render(Response(200, b"x"), request, close=False)


def test_answer_to_a_traced_request_has_traceresponse() -> None:
    request = Request("GET", "/", id="r")
    request.trace = TraceContext("a" * 32, "b" * 16)
    writer = ResponseWriter()
    field = f"traceresponse: 00-{'a' * 32}-{'b' * 16}-00\r\n".encode()
    assert field in writer.render(Response(200), request, close=False)
    head = StreamHead(200, "a/b")
    assert field in writer.render_stream_head(head, request, close=False, chunked=True)
    request.trace = None
    assert b"traceresponse" not in writer.render(Response(200), request, close=False)


@pytest.mark.parametrize(
    ("version", "close", "line"),
    [
        ("1.1", False, None),
        ("1.1", True, b"Connection: close\r\n"),
        ("1.0", False, b"Connection: keep-alive\r\n"),
        ("1.0", True, b"Connection: close\r\n"),
    ],
)
def test_connection_field_follows_version_and_close(
    version: str, close: bool, line: bytes | None
) -> None:
    request = Request("GET", "/", http_version=version)
    data = ResponseWriter().render(Response(200), request, close=close)
    assert (b"Connection" in data) is (line is not None)
    assert line is None or line in data


@pytest.mark.parametrize("name", ["", "a b", "a:", "\r\n", "é", "Content-Length", "connection"])
def test_invalid_field_name_of_a_handler_raises(name: str) -> None:
    response = Response(200, headers=((name, "x"),))
    with pytest.raises(ValueError, match="field"):
        ResponseWriter().render(response, Request("GET", "/"), close=False)


# Shared data of connections: request ids and observers.


@pytest.mark.parametrize(
    ("given", "echoed"),
    [("abc-123", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("\xe9", False)],
)
async def test_valid_request_id_is_echoed_and_an_invalid_one_replaced(
    given: str, echoed: bool, start: Start
) -> None:
    running = await start()
    conversation = await talk(running.port, get("/health", f"X-Request-Id: {given}"))
    (answer,) = conversation.answers()
    assert (answer.headers["x-request-id"] == given) is echoed
    assert running.site.requests[0].id == answer.headers["x-request-id"]


async def test_failing_observer_does_not_affect_answers(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    def observer(exchange: object) -> None:
        raise ValueError("on purpose")

    running = await start({"observers": (observer,)})
    assert (await talk(running.port, get() * 2, answers=2)).statuses == [200, 200]
    assert "a request was not logged or measured: " in caplog.text
