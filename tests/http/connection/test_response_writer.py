"""Heads as they are written."""

from __future__ import annotations

import pytest

from fastovms.http.connection.response_writer import ResponseWriter, clean
from fastovms.http.routing.messages import Request, Response, StreamHead
from fastovms.telemetry.tracing import TraceContext


def test_the_date_changes_once_a_second() -> None:
    now = 784111777.0
    writer = ResponseWriter(lambda: now)
    request = Request("GET", "/", id="r")
    first = writer.render(Response(200, b"x"), request, close=False)
    assert first == (
        b"HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
        b"Content-Type: application/json\r\nContent-Length: 1\r\nX-Request-Id: r\r\n"
        b"Request-Id: r\r\n\r\nx"
    )
    now += 0.2
    assert writer.render(Response(200, b"x"), request, close=False) == first
    now += 0.9
    assert b"08:49:38 GMT" in writer.render(Response(200, b"x"), request, close=False)


def test_a_traced_request_is_told_its_trace() -> None:
    request = Request("GET", "/", id="r")
    request.trace = TraceContext("a" * 32, "b" * 16)
    writer = ResponseWriter()
    field = f"traceresponse: 00-{'a' * 32}-{'b' * 16}-00\r\n".encode()
    assert field in writer.render(Response(200), request, close=False)
    head = StreamHead(200, "a/b")
    assert field in writer.render_stream_head(head, request, close=False, chunked=True)
    request.trace = None
    assert b"traceresponse" not in writer.render(Response(200), request, close=False)


@pytest.mark.parametrize(
    ("version", "close", "line"),
    [
        ("1.1", False, None),
        ("1.1", True, b"Connection: close\r\n"),
        ("1.0", False, b"Connection: keep-alive\r\n"),
        ("1.0", True, b"Connection: close\r\n"),
    ],
)
def test_connection_field(version: str, close: bool, line: bytes | None) -> None:
    request = Request("GET", "/", http_version=version)
    data = ResponseWriter().render(Response(200), request, close=close)
    assert (b"Connection" in data) is (line is not None)
    assert line is None or line in data


def test_an_unknown_status_has_an_empty_reason() -> None:
    data = ResponseWriter().render(Response(599), Request("GET", "/"), close=False)
    assert data.startswith(b"HTTP/1.1 599 \r\n")


@pytest.mark.parametrize(
    ("value", "cleaned"),
    [
        ("plain", "plain"),
        ("a\r\nb", "a  b"),
        ("\0\x7f\t", "   "),
        ("é", "é"),
        ("\x85", "\x85"),
        ("€", "?"),
    ],
)
def test_clean(value: str, cleaned: str) -> None:
    assert clean(value) == cleaned


@pytest.mark.parametrize("name", ["", "a b", "a:", "\r\n", "é", "Content-Length", "connection"])
def test_names_that_handlers_may_not_write(name: str) -> None:
    response = Response(200, headers=((name, "x"),))
    with pytest.raises(ValueError, match="field"):
        ResponseWriter().render(response, Request("GET", "/"), close=False)
