"""Tests of the Responses API over WebSocket with TLS and with a Unix socket."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect, unix_connect

from tests.real_server import DEADLINE, NAME, start_server, stop_server

pytestmark = pytest.mark.slow

TLS = Path(__file__).parent.parent / "http/tls"
LINGER = ("--linger-timeout", "1h")
"""Flags of a server that closes connections at once, so that the test need not wait."""

Connect = Callable[..., AbstractAsyncContextManager[ClientConnection]]


@contextmanager
def over_tls(folder: Path) -> Iterator[Connect]:
    certificate, key = TLS / "first.crt", TLS / "first.key"
    server = start_server("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), *LINGER)
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    try:
        yield partial(connect, f"{server.url.replace('http', 'ws')}/v1/responses", ssl=context)
    finally:
        stop_server(server)


@contextmanager
def over_a_unix_socket(folder: Path) -> Iterator[Connect]:
    path = folder / "socket"
    server = start_server("--uds", str(path), *LINGER)
    try:
        yield partial(unix_connect, str(path), "ws://localhost/v1/responses")
    finally:
        stop_server(server)


@pytest.mark.nightly(but=("over_tls",))
@pytest.mark.parametrize("opened", [over_tls, over_a_unix_socket])
def test_second_turn_continues_an_unstored_response_on_each_transport(
    opened: Callable[[Path], AbstractContextManager[Connect]], tmp_path: Path
) -> None:
    """The second turn continues the first one, which is not stored; then the connection is closed.
    (The threads of the synchronous client race in `close` with TLS.)"""

    async def two_turns(connect_to_server: Connect) -> tuple[dict[str, Any], int | None]:
        async with connect_to_server(
            max_size=None, open_timeout=DEADLINE, close_timeout=None
        ) as connection:

            async def ask(**members: Any) -> dict[str, Any]:
                body = {"model": NAME, "store": False, "temperature": 0, **members}
                await connection.send(json.dumps({"type": "response.create", **body}))
                while True:
                    message = await asyncio.wait_for(connection.recv(), DEADLINE)
                    event: dict[str, Any] = json.loads(message)
                    if event["type"] in ("response.completed", "response.incomplete", "error"):
                        assert event["type"] != "error", event
                        return dict(event["response"])

            first = await ask(input="My name is Alice.")
            second = await ask(input="What is my name?", previous_response_id=first["id"])
            await asyncio.wait_for(connection.close(), DEADLINE)
            return second, connection.close_code

    with opened(tmp_path) as connect_to_server:
        second, close_code = asyncio.run(two_turns(connect_to_server))
    assert "Alice" in json.dumps(second["output"])
    assert close_code == 1000
