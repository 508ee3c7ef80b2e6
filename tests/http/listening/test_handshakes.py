"""TLS handshakes: how many there may be, and what waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from fastovms.http import Request, Response
from tests.http.conftest import Start
from tests.http.more_cases import get
from tests.paths import TLS

CREDENTIALS = {"tls_certificate": str(TLS / "first.crt"), "tls_key": str(TLS / "first.key")}


async def test_an_idle_client_does_not_hold_up_the_end(start: Start) -> None:
    """It does not look at its connection, and so answers no farewell."""
    running = await start(close_timeout=600.0, **CREDENTIALS)
    context = ssl.create_default_context(cafile=TLS / "first.crt")

    def ask() -> ssl.SSLSocket:
        client = context.wrap_socket(
            socket.create_connection(("127.0.0.1", running.port), timeout=5),
            server_hostname="localhost",
            suppress_ragged_eofs=False,
        )
        client.sendall(get())
        assert b" 200 OK" in client.recv(10_000)
        return client

    with await asyncio.to_thread(ask) as client:
        await asyncio.wait_for(running.server.drain(60), 5)
        assert running.server.num_connections == 0
        assert client.recv(1) == b"", "neither a reset nor a cut"


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def secure(client: socket.socket) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=TLS / "first.crt")
    return context.wrap_socket(client, server_hostname="localhost", suppress_ragged_eofs=False)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0.01)


async def test_handshakes_are_bounded(start: Start) -> None:
    """Clients that begin none hold up nobody: the one that has waited for longest is cut."""
    running = await start(max_connections=3, **CREDENTIALS)
    server = running.server

    def ask() -> bytes:
        with secure(connect(running.port)) as client:
            client.sendall(get())
            return client.recv(10_000)

    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(running.port)) for _ in range(40)]
        await until(lambda: server.num_handshakes == 3)
        assert b" 200 OK" in await asyncio.to_thread(ask)
        assert server.num_handshakes <= 3
        for client in silent[:-2]:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1) == b""
    await until(lambda: server.num_handshakes == 0)


async def test_a_drain_waits_for_handshakes(start: Start) -> None:
    running = await start(**CREDENTIALS)
    with connect(running.port) as client:
        await until(lambda: running.server.num_handshakes == 1)
        drain = asyncio.ensure_future(running.server.drain(5))
        await asyncio.sleep(0.01)

        def ask() -> bytes:
            with secure(client) as secured:
                secured.sendall(get())
                return secured.recv(10_000)

        answer = await asyncio.to_thread(ask)
        assert b" 200 OK" in answer
        assert b"Connection: close\r\n" in answer
        await drain


async def test_a_request_is_behind_its_own_handshake(start: Start) -> None:
    running = await start(**CREDENTIALS)

    def num_handshakes(request: Request) -> Response:
        return Response(200, str(running.server.num_handshakes).encode(), "text/plain")

    running.site.router.add("GET", "/handshakes", num_handshakes)

    def ask() -> bytes:
        with secure(connect(running.port)) as client:
            client.sendall(get("/handshakes"))
            return client.recv(10_000)

    for _ in range(20):
        assert (await asyncio.to_thread(ask)).endswith(b"\r\n\r\n0")
