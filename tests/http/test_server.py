"""The server on real sockets: streams, disconnects, floods, drain."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import ssl
import struct
import weakref
from pathlib import Path
from urllib.parse import unquote

import pytest

from fastovms.config import HttpConfig
from fastovms.errors import ConfigurationError
from fastovms.http import CorsPolicy, HttpServer, Request, Response, Router
from fastovms.http.protocol import Connection
from tests.http.client import read_until_quiet, split_answer, talk
from tests.http.conftest import QUICK, Running, Start, render_error
from tests.http.more_cases import get, post

TLS = Path(__file__).parent / "tls"


async def test_a_stream_is_chunked(start: Start) -> None:
    running = await start()
    conversation = await talk(running.port, get("/stream") + get(), answers=2)
    stream, health = conversation.answers()
    assert stream.headers["transfer-encoding"] == "chunked"
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert stream.headers["cache-control"] == "no-cache"
    assert stream.headers["x-accel-buffering"] == "no"
    assert "content-length" not in stream.headers
    assert stream.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\ndata: [DONE]\n\n"
    assert health.body == b"ok"


async def test_a_stream_to_http_1_0_ends_with_the_connection(start: Start) -> None:
    running = await start()
    request = get("/stream", "Connection: keep-alive", version="1.0")
    conversation = await talk(running.port, request, answers=2)
    (answer,) = conversation.answers()
    assert conversation.closed
    assert not conversation.reset
    assert answer.headers["connection"] == "close"
    assert "transfer-encoding" not in answer.headers
    assert answer.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\ndata: [DONE]\n\n"


async def test_the_answer_to_head_has_no_stream(start: Start) -> None:
    running = await start()
    conversation = await talk(running.port, get("/stream", method="HEAD") + get(), answers=2)
    stream, health = conversation.answers(["HEAD", "GET"])
    assert stream.headers["transfer-encoding"] == "chunked"
    assert health.body == b"ok"


async def test_a_handler_that_fails_in_its_stream(start: Start) -> None:
    running = await start()
    conversation = await talk(running.port, get("/half") + get(), answers=2)
    (answer,) = conversation.answers()
    assert conversation.closed
    assert answer.body is None, "the end of the message must be missing"
    old = await talk(running.port, get("/half", version="1.0"), answers=2)
    assert old.reset, "without chunks only a reset tells a cut from an end"


async def test_a_handler_that_fails_before_it(start: Start) -> None:
    running = await start()
    conversation = await talk(running.port, get("/fails") + get(), answers=2)
    failed, health = conversation.answers()
    assert (failed.status, failed.body) == (500, b"500 /fails internal error")
    assert health.status == 200
    assert [exchange.status for exchange in running.site.exchanges] == [500, 200]


async def test_rules_for_handlers(start: Start) -> None:
    running = await start()
    site = running.site

    async def nothing(request: Request) -> None:
        return None

    async def open_end(request: Request) -> None:
        request.stream()

    async def second_thoughts(request: Request) -> Response:
        request.stream()
        return Response(418, b"no stream after all", "text/plain")

    async def both(request: Request) -> Response:
        request.stream().send(b"x")
        return Response(200)

    def injected(request: Request) -> Response:
        return Response(200, b"", headers=(("X-A", "b\r\nX-Evil: 1\0"), ("X-B", "é€")))

    def bad_name(request: Request) -> Response:
        return Response(200, b"", headers=(("X A", "b"),))

    for name, handler in (
        ("nothing", nothing),
        ("open", open_end),
        ("second", second_thoughts),
        ("both", both),
        ("injected", injected),
        ("name", bad_name),
        ("none", lambda request: Response(204, headers=(("X-A", "b"),))),
        ("unchanged", lambda request: Response(304)),
    ):
        site.router.add("GET", f"/{name}", handler)
    requests = b"".join(
        get(f"/{name}")
        for name in ("nothing", "open", "second", "injected", "name", "none", "unchanged", "both")
    )
    conversation = await talk(running.port, requests, answers=9)
    answers = conversation.answers()
    assert [answer.status for answer in answers] == [500, 500, 418, 200, 500, 204, 304, 200]
    assert answers[3].headers["x-a"] == "b  X-Evil: 1 "
    assert answers[3].headers["x-b"] == "é?"
    assert "content-length" not in answers[5].headers
    assert answers[5].headers["x-a"] == "b"
    assert answers[7].body is None


async def test_head_has_the_fields_of_get(start: Start) -> None:
    running = await start()
    conversation = await talk(running.port, get(method="HEAD") + get(), answers=2)
    head, whole = conversation.answers(["HEAD", "GET"])
    for answer in (head, whole):
        del answer.headers["x-request-id"]
    assert head.headers == whole.headers
    assert head.headers["content-length"] == "2"


async def test_allow(start: Start) -> None:
    running = await start()
    requests = get("/echo") + get("/items/1", method="PUT") + get("*", method="OPTIONS")
    echo, items, everything = (await talk(running.port, requests, answers=3)).answers()
    assert (echo.status, echo.headers["allow"]) == (405, "OPTIONS, POST")
    assert (items.status, items.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert (everything.status, everything.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")


@pytest.mark.parametrize(
    ("given", "echoed"),
    [("abc-123", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("\xe9", False)],
)
async def test_request_id(given: str, echoed: bool, start: Start) -> None:
    running = await start()
    conversation = await talk(running.port, get("/health", f"X-Request-Id: {given}"))
    (answer,) = conversation.answers()
    assert (answer.headers["x-request-id"] == given) is echoed
    assert running.site.requests[0].id == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("request_", "status", "path"),
    [
        (get("/a%0Ab?k=1", "Content-Length: 99999999", method="PUT"), 413, "/a%0Ab"),
        (get("/a%0Ab?k=1", "Expect: magic", method="PUT"), 417, "/a%0Ab"),
        (get("/a%0Ab", "X-Y: " + "x" * 70_000, method="PUT"), 431, "/a%0Ab"),
        (get("/a%0Ab", "Content-Length: 5", method="PUT"), 408, "/a%0Ab"),
        (get("/a%0Ab", "Bad Name: x", method="PUT"), 400, "/a%0Ab"),
    ],
)
async def test_a_refusal_knows_its_request(
    request_: bytes, status: int, path: str, start: Start
) -> None:
    """As far as it was read: for the form of the error, the log and the client's own id."""
    running = await start(body_timeout=0.05)
    (answer,) = (await talk(running.port, request_, answers=2)).answers()
    assert answer.status == status
    assert answer.body is not None
    assert answer.body.startswith(f"{status} {unquote(path)} ".encode())
    (exchange,) = running.site.exchanges
    assert (exchange.request.method, exchange.request.raw_path) == ("PUT", path)
    assert exchange.request.id == answer.headers["x-request-id"]


async def test_a_refusal_carries_the_clients_fields(start: Start) -> None:
    running = await start({"cross_origin": CorsPolicy()})
    request = post(
        b"", "Content-Length: 99999999", "X-Request-Id: mine", "Origin: http://a", length=False
    )
    (answer,) = (await talk(running.port, request, answers=2)).answers()
    assert (answer.status, answer.headers["x-request-id"]) == (413, "mine")
    assert answer.headers["access-control-allow-origin"] == "*"


async def test_what_a_handler_sees(start: Start) -> None:
    running = await start()
    await talk(
        running.port, get("/health?a=1", "X-A: 1", "x-a: 2", host="h:1") + post(b"hi"), answers=2
    )
    first, second = running.site.requests
    assert (first.method, first.path, first.raw_path, first.query) == (
        "GET",
        "/health",
        "/health",
        "a=1",
    )
    assert first.headers.get("X-a") == "1, 2"
    assert first.headers.get_all("X-A") == ["1", "2"]
    assert ("host", "h:1") in list(first.headers)
    assert "X-A" in first.headers
    assert first.headers.get("none") is None
    assert first.http_version == "1.1"
    assert first.route == "/health"
    assert first.client.startswith("127.0.0.1:")
    assert (second.body, second.headers.get("content-length")) == (b"hi", "2")


async def let_it_work() -> None:
    """Many passes of the loop, with time for the kernel in between."""
    for _ in range(20):
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("path", ["/health", "/stream", "/slow", "/nothing"])
async def test_a_lost_connection_leaves_nothing_behind(path: str, start: Start) -> None:
    """Not even for the garbage collector."""
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
    async with asyncio.timeout(2):
        await state.wait_until_empty()


@pytest.mark.parametrize("way", ["fin", "half", "reset"])
async def test_a_disconnect_cancels_the_handler(way: str, start: Start) -> None:
    running = await start()
    client = socket.create_connection(("127.0.0.1", running.port))
    client.sendall(get("/slow"))
    async with asyncio.timeout(1):
        await running.site.started.wait()
    if way == "half":
        client.shutdown(socket.SHUT_WR)
    else:
        if way == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    async with asyncio.timeout(1):
        await running.site.cancelled.wait()
    await wait_for_no_connection(running)
    client.close()
    assert [exchange.status for exchange in running.site.exchanges] == [499]


async def test_a_refused_upload_gets_its_answer(start: Start) -> None:
    running = await start(linger_timeout=1.0)
    size = 50 * 1024 * 1024
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(get("/echo", f"Content-Length: {size}", method="POST"))
    reading = asyncio.ensure_future(read_until_quiet(reader, 1, 3, 2))
    for _ in range(size // 65536):
        writer.write(b"x" * 65536)
        await writer.drain()
        if reading.done():
            break
    conversation = await reading
    assert conversation.statuses == [413]
    assert not conversation.reset
    writer.transport.abort()


async def test_a_large_answer_to_a_slow_reader(start: Start) -> None:
    running = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=1024)
    writer.write(get("/large"))
    received = b""
    while len(received) < 8 * 1024 * 1024:
        received += await reader.read(1 << 20)
        await asyncio.sleep(0.01)
    answer, rest = split_answer(received)
    assert answer.body is not None
    assert len(answer.body) == 8 * 1024 * 1024
    assert rest == b""
    writer.transport.abort()


@pytest.mark.parametrize("tls", [False, True])
async def test_a_last_answer_to_a_slow_reader(tls: bool, start: Start) -> None:
    """What the kernel and TLS hold hides the client's progress from the transport."""
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


async def test_one_stalled_client_costs_the_others_nothing(start: Start) -> None:
    running = await start(write_timeout=0.2)
    stalled = socket.create_connection(("127.0.0.1", running.port))
    stalled.sendall(get("/large") * 3)
    for _ in range(20):
        conversation = await talk(running.port, get("/health", "Connection: close"), answers=2)
        assert conversation.statuses == [200]
    await wait_for_no_connection(running)
    stalled.close()


async def test_noise_never_kills_it(start: Start) -> None:
    running = await start(linger_timeout=0.01, head_timeout=0.05)
    noise = random.Random(7)

    async def one() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(noise.randbytes(noise.randrange(1, 80)))
        writer.close()

    for _ in range(20):
        await asyncio.gather(*(one() for _ in range(50)))
    assert (await talk(running.port, get())).statuses == [200]
    await wait_for_no_connection(running)
    assert len(running.site.exchanges) > 100
    assert all(exchange.status != 500 for exchange in running.site.exchanges)


async def test_two_servers_cannot_share_a_port(start: Start) -> None:
    running = await start()
    with pytest.raises(ConfigurationError, match=f"127.0.0.1:{running.port}.*in use"):
        await start(port=running.port)


async def test_close_cancels_what_still_runs(start: Start) -> None:
    running = await start()
    client = asyncio.ensure_future(talk(running.port, get("/slow")))
    await running.site.started.wait()
    await running.server.close()
    assert running.site.cancelled.is_set()
    assert (await client).data == b""
    with pytest.raises(ConnectionError):
        await talk(running.port, get())


async def test_drain_waits_and_then_gives_up(start: Start) -> None:
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
    """Clients keep their connections busy, or open new ones, while the server drains: whatever it
    accepted is answered."""
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
                # The kernel had queued it, and the server had closed its listener by then.
                pass
            finally:
                writer.transport.abort()

    def accepted(reader: asyncio.StreamReader) -> bool:
        return reader.exception() is None

    clients = [asyncio.ensure_future(keep_alive()) for _ in range(30)]
    clients += [asyncio.ensure_future(reconnect()) for _ in range(4)]
    await asyncio.sleep(0.1)
    await running.server.drain(5)
    await asyncio.wait(clients, timeout=2)
    assert all(client.done() for client in clients)
    assert answered > 50
    assert lost == []
    assert running.server.num_connections == 0


async def test_a_fresh_connection_is_heard_while_draining(start: Start) -> None:
    """A connection that was accepted but has sent nothing yet is not closed unanswered."""
    running = await start(head_timeout=1.0)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    drain = asyncio.ensure_future(running.server.drain(2))
    await asyncio.sleep(0.2)
    writer.write(get())
    conversation = await read_until_quiet(reader, 1, 1, 2)
    assert conversation.statuses == [200]
    assert conversation.closed
    await drain
    writer.transport.abort()


async def test_checks_see_the_head_before_the_body(start: Start) -> None:
    def check(request: Request) -> Response | None:
        return render_error(request.path, 429, "later") if request.path == "/echo" else None

    def authenticate(request: Request) -> Response | None:
        return None if "authorization" in request.headers else render_error("", 401, "who?")

    running = await start({"checks": (check,), "authenticate": authenticate})
    requests = (
        get()
        + get("/health", "Authorization: x")
        + get("/nothing")
        + get(method="OPTIONS")
        + post(b"x", "Authorization: x")
    )
    assert (await talk(running.port, requests, answers=5)).statuses == [401, 200, 401, 204, 429]
    waiting = get("/echo", "Content-Length: 9", "Expect: 100-continue", method="POST")
    conversation = await talk(running.port, waiting, answers=2)
    assert conversation.statuses == [401]
    assert conversation.closed
    assert len(running.site.requests) == 1


async def test_an_observer_that_fails_harms_nobody(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    def observer(exchange: object) -> None:
        raise ValueError("on purpose")

    running = await start({"observers": (observer,)})
    assert (await talk(running.port, get() * 2, answers=2)).statuses == [200, 200]
    assert "an observer of requests failed" in caplog.text


async def test_exchanges(start: Start) -> None:
    running = await start()
    await talk(running.port, get() + get("/stream") + b"\0", answers=4)
    health, stream, fault = running.site.exchanges
    assert (health.status, health.completed, health.request.route) == (200, True, "/health")
    assert health.num_bytes > 100
    assert (stream.status, stream.completed) == (200, True)
    assert stream.num_bytes > 200
    assert (fault.status, fault.request.method) == (400, "-")
    assert all(0 <= exchange.duration < 1 for exchange in running.site.exchanges)


async def test_close_before_start() -> None:
    server = HttpServer(QUICK, Router(), render_error=render_error)
    await server.drain(1)
    await server.close()


def test_defaults_agree_with_one_another() -> None:
    config = HttpConfig()
    assert config.max_request_line >= 8000  # RFC 9112 3
    assert config.max_request_line <= config.max_head
    assert config.keep_alive_timeout > 60
    assert config.max_body <= config.max_buffered_bodies
