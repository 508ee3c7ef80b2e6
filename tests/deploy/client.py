"""An HTTP/1.1 client of balancers that returns each piece of an answer as it is received."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.http.client import Answer, split_answer

DEADLINE = 120.0


class Client:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> None:
        """Sends a request; the body is one chunk if a header announces chunks."""
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if body is not None and "transfer_encoding" in headers:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        elif body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        await self._writer.drain()

    async def read(self) -> bytes:
        """Returns the next bytes; b"" = the connection has ended."""
        async with asyncio.timeout(DEADLINE):
            try:
                return await self._reader.read(65536)
            except ConnectionError:
                return b""

    async def read_until(self, text: bytes) -> bytes:
        """Returns all bytes up to `text`."""
        data = b""
        while text not in data:
            piece = await self.read()
            assert piece, data
            data += piece
        return data

    async def answer(self) -> Answer:
        data = await self.read_until(b"\r\n\r\n")
        while (answer := split_answer(data)[0]).body is None:
            piece = await self.read()
            assert piece, data
            data += piece
        return answer

    async def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> Answer:
        await self.send(method, path, body, **headers)
        return await self.answer()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


async def ask(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> Answer:
    """Sends a request over a new connection."""
    async with connected(port) as client:
        return await client.ask(method, path, body, **headers)


def json_of(answer: Answer) -> Any:
    assert answer.body is not None
    return json.loads(answer.body)
