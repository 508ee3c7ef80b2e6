"""Tests of the server on real sockets: streams, fields, refusals, checks and observers."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from fastovms.errors import ConfigurationError
from fastovms.http.gates import CorsPolicy
from fastovms.http.messages import Request, Response
from fastovms.http.routing import Dispatcher, Router
from fastovms.http.server import HttpServer
from tests.http.client import talk
from tests.http.conftest import QUICK, Start, render_error
from tests.http.more_cases import get, post


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


async def test_answer_to_head_has_the_fields_of_get_and_no_body(start: Start) -> None:
    running = await start()
    requests = get("/stream", method="HEAD") + get(method="HEAD") + get()
    conversation = await talk(running.port, requests, answers=3)
    stream, head, health = conversation.answers(["HEAD", "HEAD", "GET"])
    assert stream.headers["transfer-encoding"] == "chunked"
    assert head.headers.keys() == health.headers.keys()
    assert (head.headers["content-length"], health.body) == ("2", b"ok")


async def test_failing_handler_cuts_its_stream(start: Start) -> None:
    running = await start()
    conversation = await talk(running.port, get("/half") + get(), answers=2)
    (answer,) = conversation.answers()
    assert conversation.closed
    assert answer.body is None, "the end of the message must be missing"
    old = await talk(running.port, get("/half", version="1.0"), answers=2)
    assert old.reset, "without chunks only a reset tells a cut from an end"


async def test_handler_that_fails_before_its_answer_gets_500(start: Start) -> None:
    running = await start()
    conversation = await talk(running.port, get("/fails") + get(), answers=2)
    failed, health = conversation.answers()
    assert (failed.status, failed.body) == (500, b"500 /fails internal error")
    assert health.status == 200
    assert [exchange.status for exchange in running.site.exchanges] == [500, 200]


async def test_handler_that_breaks_a_rule_gets_500(start: Start) -> None:
    running = await start()

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

    handlers = (
        nothing,
        open_end,
        second_thoughts,
        injected,
        bad_name,
        lambda request: Response(204, headers=(("X-A", "b"),)),
        lambda request: Response(304),
        both,
    )
    for number, handler in enumerate(handlers):
        running.site.router.add("GET", f"/{number}", handler)
    requests = b"".join(get(f"/{number}") for number in range(len(handlers)))
    answers = (await talk(running.port, requests, answers=9)).answers()
    assert [answer.status for answer in answers] == [500, 500, 418, 200, 500, 204, 304, 200]
    assert answers[3].headers["x-a"] == "b  X-Evil: 1 "
    assert answers[3].headers["x-b"] == "é?"
    assert "content-length" not in answers[5].headers
    assert answers[5].headers["x-a"] == "b"
    assert answers[7].body is None


async def test_allow_field_lists_the_methods_of_a_path(start: Start) -> None:
    running = await start()
    requests = get("/echo") + get("/items/1", method="PUT") + get("*", method="OPTIONS")
    echo, items, everything = (await talk(running.port, requests, answers=3)).answers()
    assert (echo.status, echo.headers["allow"]) == (405, "OPTIONS, POST")
    assert (items.status, items.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert (everything.status, everything.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")


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
async def test_refusal_names_the_path_and_the_id_of_its_request(
    request_: bytes, status: int, path: str, start: Start
) -> None:
    """As far as it was read: for the format of the error, the log and the client's own id."""
    running = await start(body_timeout=0.05)
    (answer,) = (await talk(running.port, request_, answers=2)).answers()
    assert answer.status == status
    assert answer.body is not None
    assert answer.body.startswith(f"{status} {unquote(path)} ".encode())
    (exchange,) = running.site.exchanges
    assert (exchange.request.method, exchange.request.raw_path) == ("PUT", path)
    assert exchange.request.id == answer.headers["x-request-id"]


async def test_refusal_has_cors_fields_and_the_given_id(start: Start) -> None:
    running = await start({"cross_origin": CorsPolicy("*")})
    request = post(
        b"", "Content-Length: 99999999", "X-Request-Id: mine", "Origin: http://a", length=False
    )
    (answer,) = (await talk(running.port, request, answers=2)).answers()
    assert (answer.status, answer.headers["x-request-id"]) == (413, "mine")
    assert answer.headers["access-control-allow-origin"] == "*"


async def test_two_servers_cannot_share_a_port(start: Start) -> None:
    running = await start()
    with pytest.raises(ConfigurationError, match=f"127.0.0.1:{running.port}.*in use"):
        await start(port=running.port)


async def test_checks_see_the_head_before_the_body(start: Start) -> None:
    def check(request: Request) -> Response | None:
        return render_error(request, 429, "later") if request.path == "/echo" else None

    def authenticate(request: Request) -> Response | None:
        return None if "authorization" in request.headers else render_error(request, 401, "who?")

    running = await start({"checks": (check,), "authenticate": authenticate})
    requests = (
        get()
        + get("/health", "Authorization: x")
        + get("/nothing")
        + get(method="OPTIONS")
        + post(b"x", "Authorization: x")
    )
    assert (await talk(running.port, requests, answers=5)).statuses == [401, 200, 401, 401, 429]
    waiting = get("/echo", "Content-Length: 9", "Expect: 100-continue", method="POST")
    conversation = await talk(running.port, waiting, answers=2)
    assert conversation.statuses == [401]
    assert conversation.closed
    assert len(running.site.requests) == 1


async def test_observers_get_each_exchange_with_status_and_size(start: Start) -> None:
    running = await start()
    await talk(running.port, get() + get("/stream") + b"\0", answers=4)
    health, stream, fault = running.site.exchanges
    assert (health.status, health.completed, health.request.route) == (200, True, "/health")
    assert health.num_bytes > 100
    assert (stream.status, stream.completed) == (200, True)
    assert stream.num_bytes > 200
    assert (fault.status, fault.request.method) == (400, "-")
    assert all(0 <= exchange.duration < 60 for exchange in running.site.exchanges)


async def test_server_that_was_not_started_can_be_closed() -> None:
    server = HttpServer(QUICK, Dispatcher(Router(), render_error))
    await server.drain(1)
    await server.close()
