from __future__ import annotations

from collections import Counter
from unittest.mock import MagicMock

import orjson
import pytest

from bench.endurance.body_attack.api_bodies import Bodies, all_endpoints
from bench.endurance.http_attack.answers import Answer
from bench.endurance.http_attack.body_judge import judge_body
from fastovms.api.admin import HealthRoutes
from fastovms.api.body import decode
from fastovms.api.request_schemas import CompletionRequest
from fastovms.app.routes import add_health_routes, add_model_routes
from fastovms.errors import InvalidField, MalformedBody

_OF_BATCHES = ("/files", "/batches", "/batches/{id}/cancel")
"""The last parts of the paths that `bench.endurance.batch_faults` requests."""


class _Paths:
    """A router that records the paths with a body."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def add(self, method: str, pattern: str, handler: object, operation: object = None) -> None:
        if method == "POST" and not pattern.endswith(_OF_BATCHES):
            self.found.add(pattern)


def test_every_endpoint_that_reads_a_body_is_attacked() -> None:
    paths = _Paths()
    add_model_routes(paths, MagicMock())
    add_health_routes(paths, MagicMock(spec=HealthRoutes))
    known = {
        "/v2/models/demo_model": "/v2/models/{name:path}",
        "/models/other/": "/models/{id:path}/",
        "versions/1/": "versions/{version}/",
        "/blobs/sha256:0": "/blobs/{digest}",
    }
    attacked = {endpoint.path for endpoint in all_endpoints()}
    for ours, pattern in known.items():
        attacked = {path.replace(ours, pattern) for path in attacked}
    assert {path.rstrip("/") for path in paths.found} == attacked


def test_a_seed_and_an_index_decide_a_body() -> None:
    one, same, other = (Bodies(seed, all_endpoints()) for seed in (1, 1, 2))
    made = [one.make(index) for index in range(200)]
    assert made == [same.make(index) for index in range(200)]
    assert made != [other.make(index) for index in range(200)]


def test_bodies_are_of_all_kinds() -> None:
    """Some are valid, some have a wrong field, some are not JSON; all endpoints get some."""
    bodies = Bodies(1, all_endpoints())
    outcomes: Counter[str] = Counter()
    paths: Counter[str] = Counter()
    for index in range(3000):
        path, body = bodies.make(index)
        paths[path] += 1
        if path.endswith("/completions") and "chat" not in path:
            try:
                decode(body, CompletionRequest)
                outcomes["taken"] += 1
            except InvalidField:
                outcomes["wrong field"] += 1
            except MalformedBody:
                outcomes["no JSON"] += 1
    assert min(outcomes[kind] for kind in ("taken", "wrong field", "no JSON")) > 20
    assert set(paths) == {endpoint.path for endpoint in all_endpoints()}


JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8"


def error(param: str | None, message: str = "n must be at least 1") -> bytes:
    members = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    return orjson.dumps({"error": members})


LINES = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson"
OF_ANTHROPIC = b'{"type":"error","error":{"type":"invalid_request_error","message":"a"}}'
GOOD = [
    ("/v1/messages", Answer(400, JSON, OF_ANTHROPIC)),
    ("/v1/messages", Answer(200, EVENTS, b'event: a\ndata: {"type":"message_stop"}\n\n')),
    ("/api/chat", Answer(400, JSON, b'{"error":"the body must be a JSON object"}')),
    ("/api/chat", Answer(200, LINES, b'{"done":false}\n{"done":true}\n')),
    ("/api/pull", Answer(200, LINES, b'{"status":"success"}\n')),
    ("/api/chat", Answer(200, LINES, b'{"done":false}\n{"error":"gone"}\n')),
    ("/v2/rerank", Answer(400, JSON, b'{"id":"r","message":"query is required"}')),
    ("/v1/completions", Answer(200, JSON, b"{}")),
    ("/v1/completions", Answer(400, JSON, error("n"))),
    ("/v1/completions", Answer(400, JSON, error(None))),
    ("/v1/completions", Answer(503, JSON, error(None))),
    ("/v3/completions", Answer(412, JSON, b'{"error":"the body must be a JSON object"}')),
    ("/ping", Answer(200, JSON, b"")),
    ("/v1/completions", Answer(200, EVENTS, b'data: {"a":1}\n\n: ping\n\ndata: [DONE]\n\n')),
    ("/v1/responses", Answer(200, EVENTS, b"event: a\ndata: {}\n\nevent: b\ndata: [DONE]\n\n")),
]
BAD = [
    ("/v1/messages", Answer(400, JSON, error("n"))),
    ("/v1/messages", Answer(200, EVENTS, b'data: {"type":"ping"}\n\n')),
    ("/api/chat", Answer(400, JSON, error("n"))),
    ("/api/chat", Answer(200, LINES, b'{"done":false}\n')),
    ("/api/chat", Answer(200, LINES, b'{"done":\n')),
    ("/api/chat", Answer(200, LINES, b"")),
    ("/v2/rerank", Answer(400, JSON, error("n"))),
    ("/v2/rerank", Answer(400, JSON, b'{"message":""}')),
    ("/v1/completions", Answer(500, JSON, error(None))),
    ("/v1/completions", Answer(200, JSON, b"{")),
    ("/v1/completions", Answer(400, JSON, error("stop"))),
    ("/v1/completions", Answer(400, JSON, b'{"error":"text"}')),
    ("/v1/completions", Answer(400, JSON, b'{"error":{"message":"a"}}')),
    ("/v1/completions", Answer(400, JSON, error(None, ""))),
    ("/v3/completions", Answer(400, JSON, error(None))),
    ("/v1/completions", Answer(200, b"HTTP/1.1 200 OK\r\nContent-Type: text/html", b"<html>")),
    ("/v1/completions", Answer(200, EVENTS, b'data: {"a":1}\n\n')),
    ("/v1/completions", Answer(200, EVENTS, b'data: {"a":\n\ndata: [DONE]\n\n')),
    ("/v1/completions", Answer(200, EVENTS, b"data: [DONE]\n")),
    ("/v1/completions", Answer(200, EVENTS, b"more: 1\n\ndata: [DONE]\n\n")),
]


@pytest.mark.parametrize(("path", "answer"), GOOD)
def test_good_answers_pass(path: str, answer: Answer) -> None:
    assert judge_body(path, answer) == ""


@pytest.mark.parametrize(("path", "answer"), BAD)
def test_bad_answers_are_found(path: str, answer: Answer) -> None:
    assert judge_body(path, answer)
