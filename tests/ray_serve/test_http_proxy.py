"""The proxy between an ASGI server that is faked and an HTTP server on loopback that is told what
to answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="aiohttp is missing: pip install -e '.[ray]'")

from fastovms.parts.ray_serve.replica import HttpProxy, Message
from tests.connections import serving

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

TIMEOUT = 20.0


class FakeClient:
    """What an ASGI server gives an application.

    Attributes:
        sent: the messages that the application has sent.
        incoming: those that it gets, before it waits for ever.
    """

    def __init__(self, *incoming: Message) -> None:
        self.sent: list[Message] = []
        self.incoming: asyncio.Queue[Message] = asyncio.Queue()
        for message in incoming or [piece(b"", more=False)]:
            self.incoming.put_nowait(message)

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return list(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])


def piece(body: bytes, *, more: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


LEFT: Message = {"type": "http.disconnect"}


def scope(method: str = "GET", path: str = "/", **others: object) -> dict[str, Any]:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [],
        **others,
    }


@asynccontextmanager
async def proxy_to(answer: Answer) -> AsyncIterator[HttpProxy]:
    async with serving(answer) as port:
        proxy = HttpProxy(f"http://127.0.0.1:{port}")
        try:
            async with asyncio.timeout(TIMEOUT):
                yield proxy
        finally:
            await proxy.close()


def answering(answer: bytes, heads: list[bytes]) -> Answer:
    async def read_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)

    return read_head


EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


async def test_a_head_is_passed_on_but_for_what_concerns_the_connection() -> None:
    heads: list[bytes] = []
    headers = [
        (b"host", b"cluster:8000"),
        (b"connection", b"keep-alive, X-Hop"),
        (b"x-hop", b"1"),
        (b"te", b"trailers"),
        (b"authorization", b"Bearer key"),
        (b"x-request-id", b"abc"),
        (b"x-two", b"1"),
        (b"x-two", b"2"),
    ]
    async with proxy_to(answering(EMPTY, heads)) as proxy:
        client = FakeClient()
        asked = scope(path="/v1/a%20b", query_string=b"x=%41&y", headers=headers)
        await proxy(asked, client.incoming.get, client.send)
    first, *fields = heads[0].decode().rstrip().split("\r\n")
    assert first == "GET /v1/a%20b?x=%41&y HTTP/1.1"
    assert [field.lower() for field in fields] == [
        "host: cluster:8000",
        "authorization: bearer key",
        "x-request-id: abc",
        "x-two: 1",
        "x-two: 2",
    ]
    assert (client.status, client.body) == (200, b"")


@pytest.mark.parametrize(
    ("path", "target"), [("/llm/v1/models", b"GET /v1/models "), ("/llm", b"GET / ")]
)
async def test_the_prefix_of_the_application_is_left_out(path: str, target: bytes) -> None:
    heads: list[bytes] = []
    async with proxy_to(answering(EMPTY, heads)) as proxy:
        client = FakeClient()
        await proxy(scope(path=path, root_path="/llm"), client.incoming.get, client.send)
    assert heads[0].startswith(target)


async def test_an_answer_is_passed_back_as_it_is() -> None:
    answer = (
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nDate: now\r\nX-Request-Id: abc\r\n"
        b"Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nContent-Encoding: gzip\r\n"
        b"Set-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 4\r\n\r\nbody"
    )
    async with proxy_to(answering(answer, [])) as proxy:
        client = FakeClient()
        await proxy(scope(), client.incoming.get, client.send)
    assert client.status == 429
    assert client.headers == [
        (b"retry-after", b"3"),
        (b"content-encoding", b"gzip"),
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
        (b"content-length", b"4"),
    ]
    assert client.body == b"body"


async def test_a_stream_comes_frame_by_frame() -> None:
    next_frame = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            writer.write(b"9\r\ndata: x\n\n\r\n")
            await next_frame.wait()
            next_frame.clear()
        writer.write(b"0\r\n\r\n")

    async with proxy_to(stream) as proxy:
        client = FakeClient()

        async def send(message: Message) -> None:
            await client.send(message)
            if message.get("body"):
                next_frame.set()

        await proxy(scope(), client.incoming.get, send)
    assert client.headers == []
    bodies = [message["body"] for message in client.sent[1:]]
    assert bodies == [b"data: x\n\n"] * 3 + [b""]
    assert [message["more_body"] for message in client.sent[1:]] == [True] * 3 + [False]


async def test_no_more_is_read_than_is_taken() -> None:
    num_written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        for _ in range(1000):
            writer.write(bytes(100_000))
            await writer.drain()
            num_written += 100_000

    async with proxy_to(flood) as proxy:
        client = FakeClient()
        is_stuck = asyncio.Event()

        async def never_send(message: Message) -> None:
            if message["type"] == "http.response.body":
                is_stuck.set()
                await asyncio.Event().wait()

        exchange = asyncio.ensure_future(proxy(scope(), client.incoming.get, never_send))
        await is_stuck.wait()
        before = -1
        while before != num_written:  # the buffers of the sockets fill
            before = num_written
            await asyncio.sleep(0.1)
        assert num_written < 30_000_000
        exchange.cancel()
        await asyncio.gather(exchange, return_exceptions=True)


@pytest.mark.parametrize("leaves", ["by a message", "by a cancelled task", "within its request"])
async def test_server_connection_closes_when_the_client_disconnects(leaves: str) -> None:
    has_begun, has_ended = asyncio.Event(), asyncio.Event()

    async def wait_for_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if leaves != "within its request":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        has_begun.set()
        await reader.read()
        has_ended.set()

    async with proxy_to(wait_for_end) as proxy:
        is_sent = leaves == "within its request"
        client = FakeClient(piece(b"", more=is_sent))
        headers = [(b"content-length", b"7")] if is_sent else []
        asked = scope("POST", headers=headers)
        exchange = asyncio.ensure_future(proxy(asked, client.incoming.get, client.send))
        await has_begun.wait()
        if leaves == "by a cancelled task":
            exchange.cancel()
            with pytest.raises(asyncio.CancelledError):
                await exchange
        else:
            client.incoming.put_nowait(LEFT)
            await exchange
        await has_ended.wait()


async def test_a_server_that_is_gone_is_a_503_in_openais_form() -> None:
    proxy = HttpProxy("http://127.0.0.1:1")
    client = FakeClient()
    await proxy(scope(), client.incoming.get, client.send)
    await proxy.close()
    assert client.status == 503
    assert (b"retry-after", b"1") in client.headers
    error = json.loads(client.body)["error"]
    assert (error["type"], error["param"], error["code"]) == ("server_error", None, None)


async def test_an_answer_that_is_cut_does_not_end_as_if_it_were_whole() -> None:
    cut = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
    async with proxy_to(answering(cut, [])) as proxy:
        client = FakeClient()
        with pytest.raises(OSError, match="the server ended during its response"):
            await proxy(scope(), client.incoming.get, client.send)
    assert client.sent[-1]["more_body"]
