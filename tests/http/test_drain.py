"""Connections that a server which ends has accepted, or its kernel for it, and not yet served."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from tests.http.client import read_until_quiet
from tests.http.conftest import Start
from tests.http.more_cases import get


@pytest.mark.parametrize("is_unix", [False, True])
async def test_connections_in_the_queue_are_answered(
    is_unix: bool, start: Start, tmp_path: Path
) -> None:
    """Of which the loop takes one a pass."""
    path = tmp_path / "s"
    running = await start(listen=(f"unix:{path}",))
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(100):  # in one pass of the loop, which thus accepts none of them
            client = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
            stack.enter_context(client).connect(
                str(path) if is_unix else ("127.0.0.1", running.port)
            )
            client.sendall(get())
            clients.append(client)
        await running.server.drain(5)
        for client in clients:
            reader, writer = await asyncio.open_connection(sock=client)
            conversation = await read_until_quiet(reader, 1, 1, 2)
            assert conversation.statuses == [200]
            assert conversation.closed
            writer.close()
