"""Tests of `fastovms/http/access_log.py`."""

from __future__ import annotations

from types import SimpleNamespace

import orjson
import pytest
from prometheus_client import CollectorRegistry

from fastovms.http.access_log import AccessLog, HttpMetrics
from fastovms.http.messages import Exchange, Headers, Request
from fastovms.telemetry.tracing import TraceContext

# One line per request.


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


def test_text_form_quotes_and_escapes_values() -> None:
    assert line("text") == (
        "2023-11-14T22:13:20.500Z 127.0.0.1:4711 POST /v1/%0Ax status=200 bytes=1234 "
        'duration_ms=53.2 id=r-1 prompt_tokens=5 finish="a \\"quoted\\"\\nline"'
    )


def test_json_form_has_every_field_of_a_cut_exchange() -> None:
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


def test_line_of_a_traced_request_names_its_trace() -> None:
    ended = exchange()
    ended.request.trace = TraceContext("a" * 32, "b" * 16)
    lines: list[str] = []
    AccessLog("text", lines.append)(ended)
    AccessLog("json", lines.append)(ended)
    assert f" id=r-1 trace_id={'a' * 32} span_id={'b' * 16} " in lines[0]
    told = orjson.loads(lines[1])
    assert (told["trace_id"], told["span_id"]) == ("a" * 32, "b" * 16)


@pytest.mark.parametrize("form", ["text", "json"])
def test_control_characters_of_a_path_are_escaped(form: str) -> None:
    """httptools accepts bytes above ASCII in a path."""
    ended = exchange()
    ended.request.raw_path = "/v1/\x85\x9b2J"
    lines: list[str] = []
    AccessLog(form, lines.append)(ended)
    (only,) = lines
    assert only.isprintable()
    assert r"/v1/\u0085\u009b2J" in only
    if form == "json":
        assert orjson.loads(only)["path"] == ended.request.raw_path


@pytest.mark.parametrize(
    ("path", "status", "is_logged"),
    [
        ("/health", 200, False),
        ("/health", 503, True),
        ("/healthy", 200, True),
        ("/v1/x", 200, True),
        ("/health/", 200, False),
        ("/llm/health", 200, False),
        ("/", 200, True),
    ],
)
def test_skipped_paths_are_logged_only_when_they_fail(
    path: str, status: int, is_logged: bool
) -> None:
    lines: list[str] = []
    log = AccessLog("text", lines.append, skip=["/health"])
    request = Request("GET", path, "", Headers([]))
    request.route = path.removeprefix("/llm")  # --root-path
    log(Exchange(request, status, 1, 0.1, True))
    assert bool(lines) == is_logged


def test_metrics_show_levels_bytes_requests_and_durations() -> None:
    levels = SimpleNamespace(num_connections=3, num_handshakes=4, num_body_bytes=5)
    metrics = HttpMetrics(lambda: levels)
    registry = CollectorRegistry()
    registry.register(metrics)
    for route, status, duration in (("/a", 200, 0.02), ("/a", 200, 9.0), ("", 404, 0.0)):
        request = Request("POST", "/a/secret", body=b"12345")
        request.route = route
        metrics(Exchange(request, status, 100, duration, True))
    get = registry.get_sample_value
    assert get("fastovms_http_connections") == 3
    assert get("fastovms_http_handshakes") == 4
    assert get("fastovms_http_buffered_body_bytes") == 5
    assert get("fastovms_http_received_bytes_total") == 15
    assert get("fastovms_http_sent_bytes_total") == 300
    for route, status, count in (("/a", "200", 2), ("", "404", 1)):
        labels = {"method": "POST", "route": route, "status": status}
        assert get("fastovms_http_requests_total", labels) == count
    duration = "fastovms_http_request_duration_seconds"
    assert get(f"{duration}_count", {"route": "/a"}) == 2
    assert get(f"{duration}_bucket", {"route": "/a", "le": "0.025"}) == 1
    assert get(f"{duration}_sum", {"route": "/a"}) == 9.02
