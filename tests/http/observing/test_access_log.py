"""One line a request."""

from __future__ import annotations

import orjson
import pytest

from fastovms.http.observing.access_log import AccessLog
from fastovms.http.routing.exchange import Exchange
from fastovms.http.routing.messages import Headers, Request
from fastovms.telemetry.tracing import TraceContext


def exchange(*, completed: bool = True) -> Exchange:
    request = Request(
        "POST",
        "/v1/%0Ax",
        "key=secret",
        Headers([("Authorization", "Bearer secret")]),
        client="127.0.0.1:4711",
        id="r-1",
    )
    request.log_fields["prompt_tokens"] = 5
    request.log_fields["finish"] = 'a "quoted"\nline'
    return Exchange(request, 200, 1234, 0.0532, completed)


def line(form: str, **changes: bool) -> str:
    lines: list[str] = []
    AccessLog(form, lines.append, clock=lambda: 1_700_000_000.5)(exchange(**changes))
    (only,) = lines
    assert "secret" not in only
    assert "\n" not in only
    return only


def test_text() -> None:
    assert line("text") == (
        "2023-11-14T22:13:20.500Z 127.0.0.1:4711 POST /v1/%0Ax status=200 bytes=1234 "
        'duration_ms=53.2 id=r-1 prompt_tokens=5 finish="a \\"quoted\\"\\nline"'
    )


def test_json() -> None:
    assert orjson.loads(line("json", completed=False)) == {
        "time": "2023-11-14T22:13:20.500Z",
        "client": "127.0.0.1:4711",
        "method": "POST",
        "path": "/v1/%0Ax",
        "status": 200,
        "bytes": 1234,
        "duration_ms": 53.2,
        "cut": True,
        "id": "r-1",
        "prompt_tokens": 5,
        "finish": 'a "quoted"\nline',
    }


def test_a_traced_request_names_its_trace() -> None:
    ended = exchange()
    ended.request.trace = TraceContext("a" * 32, "b" * 16)
    lines: list[str] = []
    AccessLog("text", lines.append)(ended)
    AccessLog("json", lines.append)(ended)
    assert f" id=r-1 trace_id={'a' * 32} span_id={'b' * 16} " in lines[0]
    told = orjson.loads(lines[1])
    assert (told["trace_id"], told["span_id"]) == ("a" * 32, "b" * 16)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_path_with_what_ends_a_line_or_moves_a_cursor(form: str) -> None:
    """httptools lets a path have the bytes above ASCII."""
    ended = exchange()
    ended.request.raw_path = "/v1/\x85\x9b2J"
    lines: list[str] = []
    AccessLog(form, lines.append)(ended)
    (only,) = lines
    assert only.isprintable()
    assert r"/v1/\u0085\u009b2J" in only
    if form == "json":
        assert orjson.loads(only)["path"] == ended.request.raw_path


def test_unknown_form() -> None:
    with pytest.raises(KeyError):
        AccessLog("xml", print)


@pytest.mark.parametrize(
    ("path", "status", "is_logged"),
    [
        ("/health", 200, False),
        ("/health", 503, True),
        ("/healthy", 200, True),
        ("/v1/x", 200, True),
    ],
)
def test_skipped_paths_are_logged_only_when_they_fail(
    path: str, status: int, is_logged: bool
) -> None:
    lines: list[str] = []
    log = AccessLog("text", lines.append, skip=["/health"])
    log(Exchange(Request("GET", path, "", Headers([])), status, 1, 0.1, True))
    assert bool(lines) == is_logged
