"""TLS connections as they end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

from tests.http.conftest import Start
from tests.http.more_cases import get

_TLS = Path(__file__).parent / "tls"
CREDENTIALS = {"tls_certificate": str(_TLS / "first.crt"), "tls_key": str(_TLS / "first.key")}


async def test_an_idle_client_does_not_hold_up_the_end(start: Start) -> None:
    """It does not look at its connection, and so answers no farewell."""
    running = await start(close_timeout=600.0, **CREDENTIALS)
    context = ssl.create_default_context(cafile=_TLS / "first.crt")

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
