"""Tests that requests which have reached a draining server, or its kernel, are served."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from pathlib import Path

import pytest

from fastovms.http.messages import Response
from tests.http.bench import Bench, statuses, ticks
from tests.http.client import read_until_quiet
from tests.http.conftest import Start
from tests.http.more_cases import get


@pytest.mark.parametrize("is_unix", [False, True])
async def test_drain_answers_connections_in_the_queue(
    is_unix: bool, start: Start, tmp_path: Path
) -> None:
    """The loop accepts one of them per iteration."""
    path = tmp_path / "s"
    running = await start(listen=(f"unix:{path}",))
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(100):  # in one iteration of the loop, which therefore accepts none of them
            client = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
            stack.enter_context(client).connect(
                str(path) if is_unix else ("127.0.0.1", running.port)
            )
            client.sendall(get())
            clients.append(client)
        await running.server.drain(5)
        for client in clients:
            reader, writer = await asyncio.open_connection(sock=client)
            conversation = await read_until_quiet(reader, 1, 60, 2)
            assert conversation.statuses == [200]
            assert conversation.closed
            writer.close()


@pytest.mark.slow
async def test_request_that_comes_while_the_loop_is_busy_is_answered(start: Start) -> None:
    """The time of an idle connection ends while the loop is busy and its request is in the kernel:
    an event loop runs its timers before it reads."""
    running = await start(drain_grace=0.5)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(get())
    await reader.readuntil(b"ok")
    drain = asyncio.ensure_future(running.server.drain(60))
    await ticks()
    os.write(writer.get_extra_info("socket").fileno(), get())
    time.sleep(0.6)  # noqa: ASYNC251 (the loop is busy beyond the grace)
    conversation = await read_until_quiet(reader, 1, 60, 2)
    assert conversation.statuses == [200]
    assert conversation.answers()[0].headers["connection"] == "close"
    await drain
    writer.close()


async def test_idle_connection_is_closed_when_its_time_is_over(start: Start) -> None:
    """And not in a later iteration of the loop: data that is sent until then is lost."""
    running = await start(drain_grace=0.05)
    with socket.create_connection(("127.0.0.1", running.port)) as client:
        reader, writer = await asyncio.open_connection(sock=client.dup())
        writer.write(get())
        await reader.readuntil(b"ok")
        writer.transport.pause_reading()
        [connection] = running.server._state.connections
        drain = asyncio.ensure_future(running.server.drain(5))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        connection._on_idle()
        client.settimeout(60)
        assert client.recv(1) == b""
        assert running.server.num_connections == 1, "no pass of the loop since then"
        await drain
        writer.transport.abort()


async def test_last_answer_is_not_lost_to_pipelined_input() -> None:
    """A plain close would reset the connection."""
    bench = Bench()
    transport = bench.connect()
    transport.receive(get("/wait") + get())
    bench.state.draining = True
    await ticks()
    bench.waits[0].set_result(Response(200))
    await ticks()
    assert statuses(transport) == [200]
    assert b"Connection: close\r\n" in transport.sent
    assert transport.eof
    assert not transport.closing
    await asyncio.sleep(0)
    transport.receive_eof()
    await ticks()
    assert transport.lost
