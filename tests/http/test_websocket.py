"""Tests of `fastovms/http/websocket.py`, and of the upgrade in `protocol.py`, on real sockets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.http.client import talk
from tests.http.conftest import Start
from tests.http.more_cases import get

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
FIELDS = (
    "Connection: keep-alive, Upgrade",
    "Upgrade: WebSocket",
    "Sec-WebSocket-Version: 13",
    f"Sec-WebSocket-Key: {KEY}",
)
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
MASK = b"\x01\x02\x03\x04"


def frame(opcode: int, payload: bytes = b"", *, final: bool = True, masked: bool = True) -> bytes:
    """Returns a client's frame (RFC 6455 5.2)."""
    size = len(payload)
    head = bytes([opcode | 0x80 * final])
    bit = 0x80 * masked
    if size < 126:
        head += bytes([size | bit])
    elif size < 2**16:
        head += struct.pack("!BH", 126 | bit, size)
    else:
        head += struct.pack("!BQ", 127 | bit, size)
    if not masked:
        return head + payload
    mask = int.from_bytes((MASK * (size // 4 + 1))[:size])
    return head + MASK + (int.from_bytes(payload) ^ mask).to_bytes(size)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        """Sends data unless the server has ended the connection, as it may after a wrong frame."""
        if not self.writer.is_closing():
            self.writer.write(data)

    async def read(self) -> tuple[int, bytes]:
        """Returns the server's next frame, which is never masked."""
        first, second = await self.reader.readexactly(2)
        size = second
        assert second < 0x80
        if size == 126:
            (size,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return first & 0x0F, await self.reader.readexactly(size)

    async def code(self) -> int:
        """Returns the code of the next close frame."""
        opcode, payload = await self.read()
        assert opcode == CLOSE, (opcode, payload)
        return int.from_bytes(payload[:2], "big")


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(get("/socket", *FIELDS))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101 ")
            yield Client(reader, writer)
        finally:
            writer.close()


async def test_handshake_answers_with_the_accept_key_of_rfc_6455(start: Start) -> None:
    """The key and the answer of RFC 6455, 1.3."""
    running = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(get("/socket", *FIELDS))
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in head
    assert {"Upgrade: websocket", "Connection: Upgrade"} <= set(head.split("\r\n"))
    assert "transfer-encoding" not in head.lower()
    writer.close()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ((), 426),
        (FIELDS[1:], 426),
        (("Connection: Upgrade", "Upgrade: h2c", *FIELDS[2:]), 426),
        ((*FIELDS[:2], "Sec-WebSocket-Version: 8", FIELDS[3]), 426),
        ((*FIELDS[:3], "Sec-WebSocket-Key: AAAA"), 400),
        ((*FIELDS[:3], "Sec-WebSocket-Key: !"), 400),
        (FIELDS[:3], 400),
    ],
)
async def test_invalid_handshake_leaves_the_connection_open(
    start: Start, fields: tuple[str, ...], status: int
) -> None:
    running = await start()
    conversation = await talk(running.port, get("/socket", *fields) + get(), answers=2)
    refused, health = conversation.answers()
    assert (refused.status, health.body) == (status, b"ok")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(TEXT, b"a", masked=False), 1002),
        (frame(TEXT, b"fail"), 1011),
        (frame(TEXT, b"x" * (1024 * 1024 + 1)), 1009),
        (frame(TEXT, b"x" * 700_000, final=False) + frame(0, b"x" * 700_000), 1009),
    ],
)
async def test_refused_message_closes_with_its_code(start: Start, data: bytes, code: int) -> None:
    """In addition to Autobahn's cases in `test_websocket_cases.py`."""
    running = await start()
    async with connected(running.port) as client:
        client.send(data)
        assert await client.code() == code
        assert await client.reader.read() == b""
    while running.server.num_connections:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert running.server.num_body_bytes == 0


async def test_lost_client_frees_the_memory_of_its_message(start: Start) -> None:
    running = await start()
    async with connected(running.port) as client:
        client.send(frame(TEXT, b"x" * 10_000, final=False))
        async with asyncio.timeout(60):
            while running.server.num_body_bytes != 10_000:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    while running.server.num_connections:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert running.server.num_body_bytes == 0
    assert [exchange.status for exchange in running.site.exchanges] == [101]


async def test_drain_closes_with_a_code_that_has_clients_reconnect(start: Start) -> None:
    running = await start()
    async with connected(running.port) as client:
        client.send(frame(TEXT, b"a"))
        assert await client.read() == (TEXT, b"a")
        draining = asyncio.ensure_future(running.server.drain(5))
        assert await client.code() == 1012
        client.send(frame(CLOSE, struct.pack("!H", 1012)))
        client.writer.close()
        await draining
        assert not running.server.num_connections
