"""Answers that depend on nothing but the head, on a fake transport and a virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from fastovms.http.connection.response_writer import ResponseWriter
from fastovms.http.routing.messages import Response
from tests.http.bench import Bench, statuses, ticks
from tests.http.client import Conversation
from tests.http.fake_transport import FakeTransport, VirtualLoop
from tests.http.more_cases import get

loop_factory = VirtualLoop

MODELS = get("/models", "X-A: b")


def new_bench() -> Bench:
    """At a quarter past a second, by a clock of the Date field as virtual as the loop's."""
    bench = Bench()
    start = bench.state.loop.time()
    bench.state.writer = ResponseWriter(lambda: bench.state.loop.time() - start + 1000.25)
    return bench


def ask_thrice(bench: Bench) -> FakeTransport:
    """After the second time the answer is known."""
    transport = bench.connect()
    for _ in range(3):
        transport.receive(MODELS)
    return transport


async def test_a_repeatable_answer_is_repeated_until_its_date_changes() -> None:
    bench = new_bench()
    transport, other = ask_thrice(bench), bench.connect()
    transport.receive(MODELS)
    other.receive(MODELS)
    await ticks()
    assert bench.num_asked == 2  # its bytes are known from the second time on
    answers = Conversation(transport.sent + other.sent, False).answers()
    assert [answer.body for answer in answers] == [b"models"] * 5
    ids = [answer.headers.pop("x-request-id") for answer in answers]
    assert len(set(ids)) == 5
    assert all(answer.headers == answers[0].headers for answer in answers)
    assert sum(exchange.num_bytes for exchange in bench.exchanges) == len(
        transport.sent + other.sent
    )
    await asyncio.sleep(0.74)
    transport.receive(MODELS)
    assert bench.num_asked == 2
    await asyncio.sleep(0.02)
    transport.receive(MODELS)
    assert bench.num_asked == 3
    await asyncio.sleep(74)
    assert not transport.closing
    await asyncio.sleep(2)
    assert transport.lost


@pytest.mark.parametrize(
    "request_bytes",
    [
        get("/models", "X-Refused: 1"),
        get("/models", "X-Request-Id: mine"),
        get("/models", "Connection: close"),
        get("/models").replace(b"HTTP/1.1", b"HTTP/1.0"),
        get("/models").replace(b"GET", b"HEAD"),
    ],
)
async def test_what_is_not_repeated(request_bytes: bytes) -> None:
    bench = new_bench()
    for _ in range(4):
        transport = bench.connect()
        transport.receive(request_bytes)
        await ticks()
        assert transport.sent
        transport.abort()
    assert bench.num_asked == 4


async def test_a_repeated_request_waits_for_its_turn() -> None:
    bench = new_bench()
    transport = ask_thrice(bench)
    transport.receive(get("/wait"))
    transport.receive(MODELS)
    await ticks()
    assert statuses(transport) == [200] * 3
    (waiting,) = bench.waits
    waiting.set_result(Response(404))
    await ticks()
    assert statuses(transport) == [200] * 3 + [404, 200]


async def test_forgotten_answers_are_not_repeated() -> None:
    bench = new_bench()
    transport = ask_thrice(bench)
    bench.refusal = Response(401)
    bench.state.head_cache.clear()
    transport.receive(MODELS)
    await ticks()
    assert statuses(transport) == [200, 200, 200, 401]


async def test_a_server_that_drains_repeats_nothing() -> None:
    bench = new_bench()
    transport = ask_thrice(bench)
    asked = bench.num_asked
    bench.state.draining = True
    transport.receive(MODELS)
    await ticks()
    assert transport.sent.count(b"Connection: close") == 1
    assert bench.num_asked == asked + 1
