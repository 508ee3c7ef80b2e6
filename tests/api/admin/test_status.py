from __future__ import annotations

import orjson
import pytest

from fastovms.api.admin.status import ServerPhase, ServerStatus
from fastovms.api.serving.served import ServedModel, ServedModels
from fastovms.telemetry.metrics import GenerationMetrics
from tests.fakes import ByteTokenizer, FakeBackend, make_request


@pytest.fixture
def models():
    backend = FakeBackend(lambda request, index: ())
    return ServedModels(
        [ServedModel(backend, ByteTokenizer(), GenerationMetrics("m", backend.stats))]
    )


def refusal(status: ServerStatus, path: str) -> tuple[int, object, str] | None:
    response = status.admit(make_request(path))
    if response is None:
        return None
    assert dict(response.headers) == {"Retry-After": "1"}
    return response.status, orjson.loads(response.body)["error"]


def test_phases(models):
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
    assert status.admit(make_request(path, method="GET")) is None
