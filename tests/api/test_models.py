from __future__ import annotations

import orjson
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from fastovms.api.served import ServedModel, ServedModels
from fastovms.telemetry.metrics import (
    FinishedRequest,
    GenerationCollector,
    GenerationMetrics,
    render,
)
from tests.fakes import ByteTokenizer, FakeBackend, model_info

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
                "capabilities": ["completion"],
                "status": {"value": "loaded"},
            },
        ),
        ("/v3", {**CARD, "owned_by": "OVMS"}),
        ("/v3/v1", {**CARD, "owned_by": "OVMS"}),
    ],
)
async def test_model_cards_have_the_members_of_their_prefix(api, prefix, card):
    status, listed = await get(api, f"{prefix}/models")
    cards = listed.pop("models", [])
    assert (status, listed) == (200, {"object": "list", "data": [card]})
    assert [entry["slug"] for entry in cards] == ["org/fake 1"] * (prefix == "/v1")
    for name in ("org%2Ffake%201", "org/fake%201"):
        assert await get(api, f"{prefix}/models/{name}") == (200, card)


def several_models() -> tuple[ServedModels, GenerationCollector]:
    models = []
    for name, aliases in (("one", ("uno", "org/uno")), ("two", ())):
        backend = FakeBackend(lambda request, index: b"abc", model_info(name=name))
        metrics = GenerationMetrics(name, backend.stats, {"device": f"{name}-device"})
        models.append(ServedModel(backend, ByteTokenizer(), metrics, aliases=aliases))
    return ServedModels(models), GenerationCollector(lambda: [model.metrics for model in models])


def test_metrics_of_several_models():
    """The format requires each family once, with a sample for each model."""
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
