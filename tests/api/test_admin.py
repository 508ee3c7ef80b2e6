"""Tests of `fastovms/api/admin.py`."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fastovms.api import admin
from fastovms.api.admin import ModelRoutes, ServerPhase, ServerStatus, StartWait, anthropic_list
from fastovms.api.body import BodyReader
from fastovms.api.dialect import OPENAI
from fastovms.api.served import KnownModel, ServedModel, ServedModels
from fastovms.http.messages import Headers, Request, Response
from fastovms.http.routing import Match, Router
from fastovms.telemetry.metrics import GenerationMetrics
from tests.api.test_models import api, get
from tests.fakes import ByteTokenizer, FakeBackend, FakeStream, make_request

# Requests before the models are loaded at start.


class Start:
    """A server before its start is complete."""

    def __init__(self, timeout: float = 20.0) -> None:
        self.status = ServerStatus(lambda request: request.method == "POST")
        self.router = Router()
        self.router.more_to_come = True
        self.router.pending = StartWait(self.status, self.router, BodyReader(), timeout)
        self.stream = FakeStream()
        self.requests: list[Request] = []

    def ask(self, path: str, body: object) -> asyncio.Task[Response | None]:
        request = make_request(path, body, stream=self.stream)
        self.requests.append(request)
        assert self.status.refusal(request) is None
        match = self.router.match("POST", path)
        assert isinstance(match, Match)
        return asyncio.ensure_future(match.handler(request))  # type: ignore[arg-type]

    def open(self) -> None:
        self.router.add("POST", "/v1/chat/completions", lambda request: Response(200, b"answer"))
        self.router.add("GET", "/v1/models", lambda request: Response(200))
        self.router.more_to_come = False
        self.status.open(ServedModels())


@pytest.mark.parametrize(
    ("path", "body", "status", "opens_stream"),
    [
        ("/v1/chat/completions", {}, 200, False),
        ("/v1/chat/completions", {"stream": True}, 200, True),
        ("/v1/chat/completions", b"{", 200, False),
        ("/v1/models", {}, 405, False),
        ("/v1/nosuch", {"stream": True}, 404, False),
    ],
)
async def test_request_is_answered_once_the_models_are_loaded(path, body, status, opens_stream):
    start = Start()
    task = start.ask(path, body)
    await asyncio.sleep(0.01)
    assert not task.done()
    assert (start.requests[0].early_stream is not None) == opens_stream
    start.open()
    response = await task
    assert response is not None
    assert response.status == status
    assert start.requests[0].route == (path if status == 200 else "")


@pytest.mark.parametrize("has_comments", [False, True])
@pytest.mark.parametrize(
    ("patience", "message"),
    [(20.0, "the server is shutting down"), (0.0, "the model could not be loaded within 0 s")],
)
async def test_request_is_refused_if_no_model_is_loaded(patience, message, has_comments):
    start = Start(patience)
    task = start.ask("/v1/chat/completions", {"stream": True})
    await asyncio.sleep(0)
    start.stream.started = has_comments
    start.status.phase = ServerPhase.CLOSING
    response = await task
    if has_comments:
        assert response is None
        assert start.stream.events[0]["error"]["message"] == message
    else:
        assert response is not None
        assert (response.status, dict(response.headers)["Retry-After"] != "") == (503, True)
        assert orjson.loads(response.body)["error"]["message"] == message


async def test_number_of_waiting_requests_is_limited(monkeypatch):
    monkeypatch.setattr(admin, "_MAX_WAITING", 1)
    start = Start()
    first = start.ask("/v1/chat/completions", {})
    await asyncio.sleep(0)
    response = await start.ask("/v1/chat/completions", {})
    assert response is not None
    assert response.status in (429, 503)
    start.open()
    assert (await first).body == b"answer"  # type: ignore[union-attr]


def test_get_does_not_wait():
    start = Start()
    refusal = start.status.refusal(make_request("/v1/models", method="GET"))
    assert refusal is not None
    assert refusal.status == 503
    assert start.router.match("GET", "/v1/models") is None


# The answers to probes and monitoring.


__all__ = ["api"]


@pytest.mark.parametrize("path", ["/health", "/ping", "/ready", "/v2/health/ready"])
async def test_readiness_fails_with_the_backend_but_liveness_does_not(api, path):
    assert await get(api, path) == (200, None)
    api.backend.failure = "inference hung"
    status, body = await get(api, path)
    assert status == 503
    assert "inference hung" in (body["error"] if path[:3] == "/v2" else body["error"]["message"])
    assert await get(api, "/v2/health/live") == (200, None)
    assert await get(api, "/health/") == await get(api, "/health")


async def test_version_and_metadata(api):
    assert await get(api, "/version") == (200, {"version": "1.2.3"})
    status, body = await get(api, "/v2")
    assert (status, body["name"], body["version"]) == (200, "fastovms", "1.2.3")


async def test_metrics_count_requests_tokens_and_latencies(api):
    await api.post("/v1/completions", {"prompt": ["ab", "c"], "n": 2, "max_tokens": 3})
    await api.post("/v1/completions", {"prompt": "ab"})
    response = await api.call("GET", "/metrics")
    assert response.content_type.startswith("text/plain")
    samples = {
        (sample.name, *(value for key, value in sample.labels.items() if key != "model_name")):
        sample.value
        for family in text_string_to_metric_families(response.body.decode())
        for sample in family.samples
    }  # fmt: skip
    assert samples["fastovms_request_success_total", "length"] == 4
    assert samples["fastovms_request_success_total", "stop"] == 1
    assert samples["fastovms_time_to_first_token_seconds_count",] == 5
    assert samples["fastovms_inter_token_latency_seconds_count",] == 4 * 2 + 5
    assert samples["fastovms_e2e_request_latency_seconds_count",] == 2
    for name, count, total in (
        ("request_prompt_tokens", 2, 3 + 2),
        ("request_generation_tokens", 2, 4 * 3 + 6),
        ("request_params_n", 2, 2 + 1),
        ("request_params_max_tokens", 2, 3 + 16),
    ):
        assert samples[f"fastovms_{name}_count",] == count
        assert samples[f"fastovms_{name}_sum",] == total
    assert samples["fastovms_spec_decode_num_drafts_total",] == 0
    assert samples["fastovms_spec_decode_num_draft_tokens_total",] == 0
    assert samples["fastovms_kv_cache_usage_perc",] == 0.6
    assert samples["fastovms_step_seconds_bucket", "+Inf"] == 0
    assert samples["fastovms_longest_step_seconds",] == 0
    assert samples["fastovms_num_requests_running",] == 0
    assert "fastovms_generation_tokens_total" in {name for name, *_ in samples}


async def test_metrics_of_some_names(api):
    names = ("fastovms_generation_tokens_total", "fastovms_step_seconds")
    query = "&".join(f"name[]={name}" for name in (*names, "fastovms_no_such_series"))
    response = await api.call("GET", f"/metrics?{query}")
    families = list(text_string_to_metric_families(response.body.decode()))
    assert {family.name for family in families} == {
        "fastovms_generation_tokens",
        "fastovms_step_seconds",
    }
    bucket = "fastovms_step_seconds_bucket"
    response = await api.call("GET", f"/metrics?name%5B%5D={bucket}")
    [family] = text_string_to_metric_families(response.body.decode())
    assert {sample.name for sample in family.samples} == {bucket}
    response = await api.call("GET", "/metrics?" + "name[]=x&" * 300)
    assert response.status == 400


@pytest.fixture
def models():
    backend = FakeBackend(lambda request, index: ())
    return ServedModels(
        [ServedModel(backend, ByteTokenizer(), GenerationMetrics("m", backend.stats))]
    )


def refusal(status: ServerStatus, path: str) -> tuple[int, object, str] | None:
    response = status.refusal(make_request(path))
    if response is None:
        return None
    assert dict(response.headers) == {"Retry-After": "1"}
    return response.status, orjson.loads(response.body)["error"]


def test_server_phase_decides_health_readiness_and_refusals(models):
    status = ServerStatus()
    assert status.unhealthy == status.unready == "the model is loading"
    assert refusal(status, "/v3/completions") == (503, "the model is loading")
    status.open(models)
    assert status.unhealthy is status.unready is refusal(status, "/v1/completions") is None
    status.phase = ServerPhase.LEAVING
    assert status.unhealthy is refusal(status, "/v1/completions") is None
    assert status.unready == "the server is about to shut down"
    status.phase = ServerPhase.CLOSING
    assert status.unhealthy is None
    assert status.unready == "the server is shutting down"
    code, error = refusal(status, "/v1/completions")
    assert (code, error["message"], error["type"]) == (
        503, "the server is shutting down", "server_error",
    )  # fmt: skip


@pytest.mark.parametrize("phase", list(ServerPhase))
def test_a_failed_engine(models, phase):
    status = ServerStatus.serving(models)
    status.phase = phase
    next(iter(models)).backend.fail("it hangs")
    assert status.unhealthy == status.unready == "the engine has failed: it hangs"
    assert refusal(status, "/v3/models")[0] == 503


@pytest.mark.parametrize("path", ["/health", "/ready", "/v2/health/live", "/metrics", "/version"])
@pytest.mark.parametrize("phase", list(ServerPhase))
def test_health_and_metrics_are_always_answered(models, phase, path):
    status = ServerStatus.serving(models)
    status.phase = phase
    assert status.refusal(make_request(path, method="GET")) is None


# Models in Anthropic's format, for clients that send its version header.


CARD = {
    "type": "model",
    "id": "a/b",
    "display_name": "a/b",
    "created_at": "2025-06-15T15:06:40+00:00",
    "lifecycle": "active",
    "max_input_tokens": 2048,
    "max_tokens": 2048,
    "capabilities": None,
    "deprecated_at": None,
    "retires_at": None,
    "line": None,
}


def routes() -> ModelRoutes:
    models = ServedModels()
    models.set_known([KnownModel("a/b", created=1_750_000_000, max_model_len=2048)])
    return ModelRoutes(models, OPENAI)


def ask(name: str = "", **fields: str) -> tuple[Response, dict]:
    headers = Headers((key.replace("_", "-"), value) for key, value in fields.items())
    request = Request("GET", f"/v1/models/{name}", headers=headers, id="r-1")
    request.path_params = {"id": name}
    response = routes().get(request) if name else routes().list(request)
    return response, orjson.loads(response.body)


def test_models_have_anthropic_form_with_a_version_header() -> None:
    page = {"data": [CARD], "has_more": False, "first_id": "a/b", "last_id": "a/b"}
    assert ask(anthropic_version="2023-06-01")[1] == page
    assert ask()[1]["object"] == "list"
    assert anthropic_list([])["first_id"] is None
    assert ask("a/b", anthropic_version="2023-06-01")[1] == CARD
    assert ask("a/b")[1]["object"] == "model"
    response, error = ask("other", anthropic_version="2023-06-01")
    assert (response.status, error["type"], error["request_id"]) == (404, "error", "r-1")
    assert error["error"]["type"] == "not_found_error"
