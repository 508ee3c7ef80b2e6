from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from fastovms.client import http_client
from fastovms.client.http_client import HttpClient
from fastovms.client.request_failed import RequestFailed
from fastovms.client.target import Target
from tests.client.scripted_server import Script, scripted_server

STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunks(*events: bytes) -> bytes:
    data = [b"data: %b\n\n" % event for event in events]
    return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in data) + b"0\r\n\r\n"


@asynccontextmanager
async def answering(
    *answers: bytes, closes: bool = False
) -> AsyncIterator[tuple[HttpClient, list[bytes]]]:
    """A server that gives one answer after the other over each connection, with the client of it
    and what was asked.

    Args:
        closes: the connection, after the last answer.
    """
    asked: list[bytes] = []
    handlers: set[asyncio.Task[None] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError):
            for answer in answers:
                asked.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(answer)
            if not closes:
                await reader.read()  # until the client leaves
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        target = Target("127.0.0.1", server.sockets[0].getsockname()[1], "/v1")
        client = HttpClient(target, headers={"Authorization": "Bearer k"})
        try:
            yield client, asked
        finally:
            await client.close()
            for handler in filter(None, handlers):
                await handler


async def test_bytes_of_the_command_line_are_sent_as_they_stood_there() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with answering(answer) as (client, asked):
        assert await client.ask("GET", "/caf\udce9") == b"ok"
    assert asked[0].startswith(b"GET /caf\xe9 HTTP/1.1\r\n")


async def test_connections_are_used_again() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with answering(answer, answer) as (client, asked):
        assert await client.ask("GET", "/v1/models") == b"ok"
        async with client.connection() as connection:
            assert await connection.exchange("GET", "/v1/models") == b"ok"
        assert asked[0].startswith(b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b"\r\nAuthorization: Bearer k\r\n" in asked[0]
        assert len(asked) == 2


async def test_a_stream_hands_on_its_events_with_their_times() -> None:
    found: list[tuple[bytes, float]] = []
    async with (
        answering(STREAM + chunks(b"{}", b"[DONE]")) as (client, _),
        client.connection() as connection,
    ):
        rest = await connection.exchange("GET", "/", b"", lambda *event: found.append(event))
        assert connection.is_reusable
    assert rest == b""
    assert [data for data, _ in found] == [b"{}", b"[DONE]"]
    assert all(when > 0 for _, when in found)


async def test_an_answer_that_the_connection_ends() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n\r\nall of it", closes=True) as (client, _):
        assert await client.ask("GET", "/") == b"all of it"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b'HTTP/1.1 404 Not Found\r\nContent-Length: 14\r\n\r\n{"error": "a"}', "HTTP 404: a"),
        (STREAM + chunks(b"{}")[:-9], "connection closed: before the end of the answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "connection closed"),
        (b"", "connection closed"),
        (b"SSH-2.0-OpenSSH\r\n", "protocol error"),
    ],
)
async def test_failures(answer: bytes, message: str) -> None:
    async with answering(answer, closes=True) as (client, _):
        with pytest.raises(RequestFailed, match=message):
            async with client.connection() as connection:
                await connection.exchange("GET", "/", b"", lambda *event: None)


async def test_an_event_may_end_the_request() -> None:
    def refuse(data: bytes, now: float) -> None:
        raise RequestFailed("error in the stream", "engine died")

    async with answering(STREAM + chunks(b"{}")) as (client, _):
        with pytest.raises(RequestFailed, match="engine died"):
            async with client.connection() as connection:
                await connection.exchange("GET", "/", b"", refuse)


async def test_a_cancelled_request_closes_its_connection() -> None:
    async with answering(STREAM) as (client, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), client.connection() as connection:
                await connection.exchange("GET", "/", b"", lambda *event: None)
        assert not connection.is_reusable


async def test_an_endless_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "_MAX_BODY", 10)
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + b"a" * 20) as (
        client,
        _,
    ):
        with pytest.raises(RequestFailed, match="too long"):
            await client.ask("GET", "/")


async def test_nobody_listens(unused_tcp_port_factory: Callable[[], int]) -> None:
    client = HttpClient(Target("127.0.0.1", unused_tcp_port_factory(), "/v1"))
    with pytest.raises(RequestFailed, match=r"no connection: 127.0.0.1:.* refused"):
        await client.ask("GET", "/")


async def test_certificates_are_verified_unless_told_otherwise() -> None:
    with scripted_server(Script(), is_tls=True) as url:
        target = Target.from_url(url)
        with pytest.raises(RequestFailed, match=r"no connection.*certificate"):
            await HttpClient(target).ask("GET", "/v1/models")
        client = HttpClient(target, verify=False)
        assert b"scripted" in await client.ask("GET", "/v1/models")
        await client.close()
