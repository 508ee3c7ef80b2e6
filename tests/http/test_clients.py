"""Tests of clients on real sockets that disconnect, stall or flood, and of a server that ends
meanwhile."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import ssl
import struct
import weakref

import pytest

from fastovms.http.protocol import Connection
from tests.http.client import split_answer, talk
from tests.http.conftest import Running, Start
from tests.http.more_cases import get, post
from tests.paths import TLS


async def let_it_work() -> None:
    """Runs many iterations of the loop, with time for the kernel in between."""
    for _ in range(20):
        await asyncio.sleep(0.002)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/health", "/stream", "/slow", "/nothing"])
async def test_lost_connection_is_freed_without_garbage_collection(path: str, start: Start) -> None:
    """Its memory is freed at once."""
    running = await start()
    state = running.server._state
    assert state is not None
    gc.collect()
    gc.disable()
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(get(path))
        await let_it_work()
        (connection,) = state.connections
        assert isinstance(connection, Connection)
        left = [weakref.ref(part) for part in (connection, connection._parser)]
        del connection
        writer.transport.abort()
        await wait_for_no_connection(running)
        running.site.exchanges.clear()
        running.site.requests.clear()
        await let_it_work()
        assert [part() for part in left] == [None, None]
    finally:
        gc.enable()


async def wait_for_no_connection(running: Running) -> None:
    state = running.server._state
    assert state is not None
    async with asyncio.timeout(60):
        await state.wait_until_empty()


@pytest.mark.parametrize("way", ["fin", "half", "reset"])
async def test_disconnect_cancels_the_handler(way: str, start: Start) -> None:
    running = await start()
    client = socket.create_connection(("127.0.0.1", running.port))
    client.sendall(get("/slow"))
    async with asyncio.timeout(60):
        await running.site.started.wait()
    if way == "half":
        client.shutdown(socket.SHUT_WR)
    else:
        if way == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    async with asyncio.timeout(60):
        await running.site.cancelled.wait()
    await wait_for_no_connection(running)
    client.close()
    assert [exchange.status for exchange in running.site.exchanges] == [499]


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True])
async def test_last_answer_is_sent_whole_to_a_slow_reader(tls: bool, start: Start) -> None:
    """The kernel and TLS hide the client's progress from the transport."""
    credentials = {"tls_certificate": str(TLS / "first.crt"), "tls_key": str(TLS / "first.key")}
    running = await start(close_timeout=1.0, **(credentials if tls else {}))
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    sock.connect(("127.0.0.1", running.port))
    reader, writer = await asyncio.open_connection(
        sock=sock,
        limit=1024,
        ssl=ssl.create_default_context(cafile=TLS / "first.crt") if tls else None,
        server_hostname="localhost" if tls else None,
    )
    writer.write(get("/large", "Connection: close"))
    received = b""
    loop = asyncio.get_running_loop()
    slow_until = loop.time() + 1.5
    while piece := await reader.read(8 * 1024):
        received += piece
        if loop.time() < slow_until:
            await asyncio.sleep(0.005)
    answer, _ = split_answer(received)
    assert answer.body is not None
    writer.close()


@pytest.mark.slow
async def test_stalled_client_is_cut_and_does_not_block_others(start: Start) -> None:
    running = await start(write_timeout=0.2)
    stalled = socket.create_connection(("127.0.0.1", running.port))
    stalled.sendall(get("/large") * 3)
    for _ in range(20):
        conversation = await talk(running.port, get("/health", "Connection: close"), answers=2)
        assert conversation.statuses == [200]
    await wait_for_no_connection(running)
    stalled.close()


async def test_close_cancels_running_handlers(start: Start) -> None:
    running = await start()
    client = asyncio.ensure_future(talk(running.port, get("/slow")))
    await running.site.started.wait()
    await running.server.close()
    assert running.site.cancelled.is_set()
    assert (await client).data == b""
    with pytest.raises(ConnectionError):
        await talk(running.port, get())


async def test_drain_returns_at_its_timeout_and_goes_on_when_called_again(start: Start) -> None:
    running = await start()
    client = asyncio.ensure_future(talk(running.port, get("/slow"), answers=2))
    await running.site.started.wait()
    await running.server.drain(0.05)
    assert running.server.num_connections == 1
    with pytest.raises(ConnectionError):
        await talk(running.port, get())
    running.site.release.set()
    await running.server.drain(1)
    conversation = await client
    assert conversation.answers()[0].headers["connection"] == "close"
    assert conversation.closed
    assert running.server.num_connections == 0


async def test_drain_under_load_drops_no_request(start: Start) -> None:
    """Clients keep their connections busy, or open new ones, while the server drains: every
    accepted request is answered."""
    running = await start(drain_grace=0.3)
    answered = 0
    lost: list[str] = []

    async def keep_alive() -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        try:
            while True:
                writer.write(post(b"x", target="/later"))
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(1)
                answered += 1
                if b"Connection: close" in head:
                    return
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            lost.append(repr(error))
        finally:
            writer.transport.abort()

    async def reconnect() -> None:
        nonlocal answered
        while True:
            try:
                _, writer = streams = await asyncio.open_connection("127.0.0.1", running.port)
            except ConnectionRefusedError:
                return
            try:
                writer.write(get("/health", "Connection: close"))
                await asyncio.sleep(random.random() * 0.01)
                data = await streams[0].read()
                if data:
                    answered += 1
                elif accepted(streams[0]):
                    lost.append("no answer")
            except ConnectionResetError:
                # The kernel had queued it, and the server had already closed its listener.
                pass
            finally:
                writer.transport.abort()

    def accepted(reader: asyncio.StreamReader) -> bool:
        return reader.exception() is None

    clients = [asyncio.ensure_future(keep_alive()) for _ in range(30)]
    clients += [asyncio.ensure_future(reconnect()) for _ in range(4)]
    while answered <= 50:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await running.server.drain(60)
    await asyncio.wait(clients, timeout=60)
    assert all(client.done() for client in clients)
    assert lost == []
    assert running.server.num_connections == 0
