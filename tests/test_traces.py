"""A collector of OpenTelemetry gets the spans of a real server, whose answers and log name them."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.real_server import DEADLINE, NAME, PROMPT, Server, start_server, stop_server

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


class Collector:
    """Takes spans by OTLP over HTTP."""

    def __init__(self) -> None:
        self._spans: queue.Queue[Any] = queue.Queue()
        spans = self._spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/traces":
                    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                        for scope in resource.scope_spans:
                            for span in scope.spans:
                                spans.put((resource.resource, span))
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def next(self) -> tuple[dict[str, Any], Any]:
        """Returns the next span, behind what its resource is called."""
        resource, span = self._spans.get(timeout=DEADLINE)
        return {one.key: one.value.string_value for one in resource.attributes}, span

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@contextmanager
def traced_server(*flags: str, **environment: str) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(f"OTEL_{name}", value)
        server = start_server(*flags)
    try:
        yield server
    finally:
        stop_server(server)


def ask(server: Server, **headers: str) -> Any:
    body = {"model": NAME, "prompt": PROMPT, "max_tokens": 5}
    answer = server.send("POST", "/v1/completions", body, **headers)
    return answer.headers, answer.json


def test_spans_join_their_callers_traces(collector: Collector, tmp_path: Path) -> None:
    log_path = tmp_path / "access.json"
    flags = ("--access-log", "json", "--access-log-file", str(log_path))
    with traced_server(
        "--otlp-traces-endpoint", collector.url, *flags, BSP_SCHEDULE_DELAY="50"
    ) as server:
        check_joined(server, collector, log_path)
        check_begun(server, collector)
        check_not_sampled(server, collector)


def check_joined(server: Server, collector: Collector, log_path: Path) -> None:
    headers, answer = ask(server, traceparent=f"00-{TRACE}-{PARENT}-01", **{"X-Request-Id": "t-1"})
    resource, span = collector.next()
    assert resource["service.name"] == "fastovms"
    assert span.name == f"text_completion {NAME}"
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert headers["traceresponse"] == f"00-{TRACE}-{span.span_id.hex()}-01"
    assert headers["x-request-id"] == "t-1"
    told = {one.key: one.value for one in span.attributes}
    assert told["gen_ai.response.id"].string_value == answer["id"]
    usage = answer["usage"]
    assert told["gen_ai.usage.output_tokens"].int_value == usage["completion_tokens"]
    times = [span.start_time_unix_nano, *(event.time_unix_nano for event in span.events),
             span.end_time_unix_nano]  # fmt: skip
    assert [event.name for event in span.events] == ["queue", "prefill", "decode"]
    assert times == sorted(times)
    deadline = time.monotonic() + DEADLINE
    while not (text := log_path.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    line = json.loads(text)
    assert line["id"] == "t-1"
    assert (line["trace_id"], line["span_id"]) == (TRACE, span.span_id.hex())


def check_begun(server: Server, collector: Collector) -> None:
    headers, _ = ask(server)
    _, span = collector.next()
    assert span.parent_span_id == b""
    assert headers["traceresponse"] == f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"


def check_not_sampled(server: Server, collector: Collector) -> None:
    headers, _ = ask(server, traceparent=f"00-{TRACE}-{PARENT}-00")
    assert headers["traceresponse"].startswith(f"00-{TRACE}-")
    assert headers["traceresponse"].endswith("-00")
    ask(server, traceparent=f"00-{'5' * 32}-{PARENT}-01")
    _, span = collector.next()
    assert span.trace_id.hex() == "5" * 32, "the first of the two was not sent"


@pytest.mark.nightly
def test_the_last_spans_are_sent_at_the_end(collector: Collector) -> None:
    environment = {
        "BSP_SCHEDULE_DELAY": "60000",
        "EXPORTER_OTLP_ENDPOINT": collector.url,
    }
    with traced_server(**environment) as server:
        ask(server)
        server.process.terminate()
        assert server.process.wait(DEADLINE) == 0
        _, span = collector.next()
        assert span.name == f"text_completion {NAME}"
