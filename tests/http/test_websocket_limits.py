"""Tests of the limits of a WebSocket connection: turns, memory and time."""

from __future__ import annotations

import asyncio
import dataclasses
from mmap import mmap
from typing import Any

import pytest

from fastovms.http.messages import Request, Response
from fastovms.http.websocket import POLICY, WebSocket, open_websocket
from fastovms.http.writers import PASS_SECONDS
from tests.http.bench import CONFIG, Bench, ticks
from tests.http.fake_transport import FakeTransport, VirtualLoop
from tests.http.more_cases import get
from tests.http.test_websocket import CLOSE, FIELDS, PING, PONG, TEXT, frame

loop_factory = VirtualLoop

PER_PASS = 5


class SocketBench(Bench):
    """Connections whose messages are recorded, and whose frames take time.

    Attributes:
        received: the messages in the order in which they were received.
        sockets: the connections.
    """

    def __init__(self, **limits: Any) -> None:
        super().__init__(dataclasses.replace(CONFIG, max_connections=100, **limits))
        self.received: list[bytes | mmap] = []
        self.sockets: list[WebSocket] = []
        self.state.dispatcher._router.add("GET", "/socket", self.socket)
        self.state.frame_limiter._clock = self.clock

    def clock(self) -> float:
        self.now += PASS_SECONDS / PER_PASS
        return self.now

    async def socket(self, request: Request) -> Response | None:
        socket = open_websocket(request)
        self.sockets.append(socket)
        while (message := await socket.receive()) is not None:
            self.received.append(message)
        return None

    async def open(self) -> FakeTransport:
        transport = self.connect()
        transport.receive(get("/socket", *FIELDS))
        await ticks()
        assert transport.sent.startswith(b"HTTP/1.1 101 ")
        transport.sent = b""
        return transport


async def rest(passes: int = 1) -> None:
    """Waits for the given number of iterations in which frames are handled."""
    for _ in range(passes):
        await asyncio.sleep(0.021)


async def test_connection_that_answers_no_pings_ends() -> None:
    transport = await SocketBench().open()
    for _ in range(8):  # longer than a silent client may take
        await asyncio.sleep(CONFIG.ping_interval)
        assert transport.sent.startswith(bytes([0x80 | PING, 0]))
        transport.sent = b""
        transport.receive(frame(PONG))
    await asyncio.sleep(CONFIG.write_timeout + 4 * CONFIG.ping_interval)
    assert transport.lost


async def test_frames_are_handled_in_passes_with_rests_between_them() -> None:
    bench = SocketBench()
    transport = await bench.open()
    transport.receive(frame(PING, b"p") * 40)
    before = transport.sent.count(b"p")
    assert 0 < before <= PER_PASS + 1
    assert not transport.is_reading()
    await ticks(10)
    assert transport.sent.count(b"p") == before, "others have the loop in between"
    counts = [before]
    while counts[-1] < 40:
        await rest()
        counts.append(transport.sent.count(b"p"))
        assert counts[-1] - counts[-2] <= PER_PASS + 1
    await rest()
    assert transport.is_reading()


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, b"flood"),
        frame(PONG, b"flood"),
        frame(TEXT, b"", final=False) + frame(0, b"", final=False) * 99,
        frame(TEXT, b"", final=False) + frame(0, b"x", final=False) * 99,
        frame(TEXT, b"{}"),
    ],
    ids=["pings", "pongs", "empty fragments", "fragments of one byte", "messages"],
)
async def test_a_flood_on_many_connections_delays_another_one_by_a_turn_of_each(
    flood: bytes,
) -> None:
    bench = SocketBench()
    floods = [await bench.open() for _ in range(10)]
    other = await bench.open()
    for transport in floods:
        transport.receive(flood * 50)
    other.receive(frame(PING, b"other"))
    num_passes = 0
    while b"other" not in other.sent:
        await rest()
        num_passes += 1
    assert num_passes <= 1 + len(floods) / (PER_PASS - 1)


async def test_a_connection_may_end_while_its_frames_wait() -> None:
    bench = SocketBench()
    transport = await bench.open()
    transport.receive(frame(TEXT, b"a") * 40)
    assert not transport.is_reading()
    transport.abort()
    await rest(20)
    for message in bench.received:
        bench.sockets[0].give_back(len(message))
    assert bench.state.body_budget.used == 0


async def test_the_servers_end_is_sent_before_frames_that_wait() -> None:
    bench = SocketBench()
    transport = await bench.open()
    transport.receive(frame(PING) * 40)
    bench.sockets[0].close()
    assert transport.is_reading()
    await rest(20)
    assert transport.sent[-4] & 0x0F == CLOSE
    assert transport.eof


async def test_a_client_that_does_not_read_gets_one_answer_to_all_its_pings() -> None:
    bench = SocketBench()
    transport = await bench.open()
    transport.room = 0
    bench.sockets[0].send("x" * 100_000)
    assert not bench.sockets[0].writable
    size = transport.get_write_buffer_size()
    for number in range(1000):
        transport.receive(frame(PING, b"%d" % number))
        await rest()
    assert transport.get_write_buffer_size() == size
    transport.take(None)
    assert transport.sent.endswith(b"\x8a\x03999")


async def test_the_memory_of_a_message_is_held_until_it_is_given_back() -> None:
    bench = SocketBench()
    transport = await bench.open()
    transport.receive(frame(TEXT, b"x" * 1000, final=False))
    assert bench.state.body_budget.used == 1000
    transport.receive(frame(0, b"y" * 500))
    await rest()
    assert [bytes(message) for message in bench.received] == [b"x" * 1000 + b"y" * 500]
    assert bench.state.body_budget.used == 1500
    transport.abort()
    await rest()
    assert bench.state.body_budget.used == 1500, "the turn still runs"
    bench.sockets[0].give_back(1500)
    assert bench.state.body_budget.used == 0


async def test_messages_share_the_memory_of_bodies_with_those_of_other_connections() -> None:
    bench = SocketBench(max_buffered_bodies=10_000)
    first, second = await bench.open(), await bench.open()
    faults: list[tuple[int, str]] = []
    bench.sockets[1].on_fault = lambda *fault: faults.append(fault)
    first.receive(frame(TEXT, b"x" * 4000))
    second.receive(frame(TEXT, b"x" * 4000))
    await rest()
    assert faults == [(503, "too many messages of this client in memory")]
    assert [transport.eof for transport in (first, second)] == [False, True]
    assert bench.state.body_budget.used == 4000


@pytest.mark.parametrize("payload", [b"", b"x"])
async def test_a_message_that_does_not_end_has_the_time_of_a_body(payload: bytes) -> None:
    bench = SocketBench(body_timeout=60, min_body_rate=100)
    transport = await bench.open()
    faults: list[tuple[int, str]] = []
    bench.sockets[0].on_fault = lambda *fault: faults.append(fault)
    transport.receive(frame(TEXT, final=False))
    seconds = 0
    while not transport.eof:
        await asyncio.sleep(1)
        seconds += 1
        transport.receive(frame(0, payload, final=False))
        assert seconds < 100
    assert 60 <= seconds < 63
    assert faults == [(408, "the message did not arrive in time")]
    assert transport.sent[-2 - len(faults[0][1]) :].startswith(POLICY.to_bytes(2))
    assert bench.state.body_budget.used == 0


async def test_a_slow_message_at_the_least_rate_is_read() -> None:
    bench = SocketBench(body_timeout=60, min_body_rate=100)
    transport = await bench.open()
    transport.receive(frame(TEXT, final=False))
    for _ in range(300):
        await asyncio.sleep(1)
        transport.receive(frame(0, b"x" * 200, final=False))
    transport.receive(frame(0, b"x"))
    await rest()
    assert [len(message) for message in bench.received] == [60_001]
