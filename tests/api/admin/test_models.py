from __future__ import annotations

import orjson
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from fastovms.api.admin.models import ModelRoutes
from fastovms.api.serving.served import ServedModel, ServedModels
from fastovms.api.wire.dialect import OPENAI
from fastovms.errors import ModelNotFound
from fastovms.metrics import FinishedRequest, GenerationCollector, GenerationMetrics, render
from tests.fakes import ByteTokenizer, FakeBackend, make_request, model_info

CARD = {"id": "org/fake 1", "object": "model", "created": 1_700_000_000}


@pytest.fixture
def api(make_api):
    return make_api(model=model_info(name="org/fake 1"))


async def get(api, path: str):
    response = await api.call("GET", path)
    return response.status, orjson.loads(response.body) if response.body else None


@pytest.mark.parametrize(
    ("prefix", "card"),
    [
        (
            "/v1",
            {
                **CARD,
                "owned_by": "fastovms",
                "root": "org/fake 1",
                "parent": None,
                "max_model_len": 64,
                "permission": [],
            },
        ),
        ("/v3", {**CARD, "owned_by": "OVMS"}),
        ("/v3/v1", {**CARD, "owned_by": "OVMS"}),
    ],
)
async def test_models(api, prefix, card):
    assert await get(api, f"{prefix}/models") == (200, {"object": "list", "data": [card]})
    for name in ("org%2Ffake%201", "org/fake%201"):
        assert await get(api, f"{prefix}/models/{name}") == (200, card)


async def test_unknown_model(api):
    status, body = await get(api, "/v1/models/other")
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    status, body = await get(api, "/v3/models/other")
    assert (status, body) == (404, {"error": "The model `other` does not exist."})


@pytest.mark.parametrize("path", ["/health", "/ping", "/ready", "/v2/health/ready"])
async def test_health(api, path):
    assert await get(api, path) == (200, None)
    api.backend.failure = "inference hung"
    status, body = await get(api, path)
    assert status == 503
    assert "inference hung" in (body["error"] if path[:3] == "/v2" else body["error"]["message"])
    assert await get(api, "/v2/health/live") == (200, None)
    assert await get(api, "/health/") == await get(api, "/health")


def several_models() -> tuple[ServedModels, GenerationCollector]:
    models = []
    for name, aliases in (("one", ("uno", "org/uno")), ("two", ())):
        backend = FakeBackend(lambda request, index: b"abc", model_info(name=name))
        metrics = GenerationMetrics(name, backend.stats, {"device": f"{name}-device"})
        models.append(ServedModel(backend, ByteTokenizer(), metrics, aliases=aliases))
    return ServedModels(models), GenerationCollector([model.metrics for model in models])


def test_several_models_and_names():
    models, _ = several_models()
    assert [model.info.name for model in models] == ["one", "two"]
    for name, expected in ((None, "one"), ("uno", "one"), ("org/uno", "one"), ("two", "two")):
        assert models.find(name, OPENAI).info.name == expected
    with pytest.raises(ModelNotFound):
        models.find("three", OPENAI)
    routes = ModelRoutes(models, OPENAI)
    listing = orjson.loads(routes.list(make_request("/v1/models")).body)
    assert [card["id"] for card in listing["data"]] == ["one", "two"]
    for name in ("one", "uno", "org/uno"):
        request = make_request("/v1/models/x")
        request.path_params = {"id": name}
        assert orjson.loads(routes.get(request).body)["id"] == "one"


def test_metrics_of_several_models():
    """Each family comes once, as the format wants it, with a sample for each model."""
    models, collector = several_models()
    first = next(iter(models)).metrics
    first.request_finished(FinishedRequest(1.0, ["stop"], 3, 4, 1, 16))
    registry = CollectorRegistry()
    registry.register(collector)
    text, _ = render(registry, "")
    lines = text.decode().splitlines()
    types = [line for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    for family in text_string_to_metric_families(text.decode()):
        names = {sample.labels["model_name"] for sample in family.samples}
        assert names == ({"one"} if family.name == "fastovms_request_success" else {"one", "two"})
    assert 'fastovms_model_info{device="two-device",model_name="two"} 1.0' in lines
    assert 'fastovms_request_params_n_count{model_name="one"} 1.0' in lines
    assert 'fastovms_request_params_n_count{model_name="two"} 0.0' in lines


async def test_version_and_metadata(api):
    assert await get(api, "/version") == (200, {"version": "1.2.3"})
    status, body = await get(api, "/v2")
    assert (status, body["name"], body["version"]) == (200, "fastovms", "1.2.3")


async def test_metrics(api):
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
