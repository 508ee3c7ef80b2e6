"""Tests of `fastovms/parts/ollama/models.py`."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
from msgspec import UNSET

from fastovms.api.served import KnownModel, ServedModel
from fastovms.backend_stats import BackendStats
from fastovms.params import SamplingDefaults, WeightCount
from fastovms.parts.ollama.generation import timestamp
from fastovms.parts.ollama.models import full_card, list_card, running_card
from fastovms.telemetry.metrics import GenerationMetrics
from tests.api.chat_models import SOURCE, chat_model
from tests.api.encoder_api import served_encoder
from tests.api.ollama.ollama_requests import make, refused
from tests.fakes import ByteTokenizer, FakeBackend, model_info

# The descriptions of models.


WEIGHTS = WeightCount(751_632_384, "u4")
CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "text_config": {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8},
}


def loaded(weights: WeightCount | None = WEIGHTS) -> KnownModel:
    defaults = SamplingDefaults(temperature=0.6, top_k=20, repetition_penalty=1.1)
    info = replace(model_info(defaults=defaults), config=CONFIG, fingerprint="f", weights=weights)
    backend = FakeBackend(lambda request, index: b"a", info)
    metrics = GenerationMetrics("fake", backend.stats)
    return KnownModel.of(ServedModel(backend, ByteTokenizer(), metrics, chat=chat_model()))


def test_cards_of_a_loaded_model_describe_it() -> None:
    model = loaded()
    model.size, model.file_size = 50, 5
    card = full_card(model, fills_in=True)
    assert card.capabilities == ["completion", "tools", "insert", "thinking"]
    assert card.model_info == {
        "general.architecture": "qwen3",
        "general.basename": "fake",
        "general.parameter_count": 751_632_384,
        "qwen3.context_length": 64,
        "qwen3.embedding_length": 1024,
        "qwen3.block_count": 28,
        "qwen3.attention.head_count": 16,
        "qwen3.attention.head_count_kv": 8,
    }
    assert card.template == SOURCE
    assert [line.split() for line in card.parameters.splitlines()] == [
        ["temperature", "0.6"],
        ["top_k", "20"],
        ["repeat_penalty", "1.1"],
    ]
    listed = list_card(model, "other")
    assert (listed.name, listed.model, listed.size) == ("other", "other", 5)
    assert listed.details.families == ["qwen3"]
    assert len(listed.digest) == 64
    running = running_card(model, 0.0, None)
    assert running.size == 5  # nothing is packed or cached yet
    assert running.context_length == 64
    assert running.expires_at.startswith("2069-")
    assert running.digest == listed.digest


def test_cards_of_a_model_never_loaded_have_defaults() -> None:
    model = KnownModel("m", created=5)
    card = full_card(model, fills_in=False)
    assert card.capabilities == ["completion"]
    assert card.model_info == {"general.architecture": "openvino", "general.basename": "m"}
    assert card.details.families == []
    assert list_card(model, "m").digest != list_card(loaded(), "fake").digest
    assert running_card(model, 0.0, None).context_length is UNSET


@pytest.mark.parametrize(
    ("weights", "size", "level"),
    [
        (WeightCount(7_615_616_512, "u4"), "7.6B", "INT4"),
        (WeightCount(134_515_008, "i8"), "134.52M", "INT8"),
        (WeightCount(1918, "f16"), "1.92K", "F16"),
        (WeightCount(7, "nf4"), "7", "NF4"),
        (None, "", ""),
    ],
)
def test_details_have_parameter_size_and_quantization(
    weights: WeightCount | None, size: str, level: str
) -> None:
    details = list_card(loaded(weights), "fake").details
    assert (details.parameter_size, details.quantization_level) == (size, level)


# The requests of Ollama's clients about models.


__all__ = ["make"]


async def get(api, path: str):
    response = await api.call("GET", path)
    assert response.status == 200
    return orjson.loads(response.body)


async def test_tags_list_known_models_and_ps_lists_loaded_ones(make, monkeypatch):
    api = make()
    assert (await get(api, "/api/version"))["version"].count(".") == 2
    [model] = (await get(api, "/api/tags"))["models"]
    assert (model["name"], model["modified_at"]) == ("fake", "2023-11-14T22:13:20.000000Z")
    [model] = (await get(api, "/api/ps"))["models"]
    assert (model["name"], model["context_length"]) == ("fake", 2000)
    assert model["expires_at"].startswith("21")
    [known] = api.context.models.known
    stats = BackendStats(packed_weights_bytes=20, kv_cache_bytes=3)
    monkeypatch.setattr(known.served.backend, "stats", lambda: stats)
    known.file_size = 100
    assert (await get(api, "/api/ps"))["models"][0]["size"] == 123, "memory, not the file"
    assert (await get(api, "/api/tags"))["models"][0]["size"] == 100
    [known] = api.context.models.known
    known.served, known.aliases = None, ("alias",)
    assert (await get(api, "/api/ps"))["models"] == []
    assert [m["name"] for m in (await get(api, "/api/tags"))["models"]] == ["fake", "alias"]


async def test_running_model_has_the_time_of_its_unloading(make):
    api = make()
    api.context.models.holder = SimpleNamespace(seconds_to_unload=lambda name: 90.0)
    now = api.context.unix_time()
    [model] = (await get(api, "/api/ps"))["models"]
    assert model["expires_at"] == timestamp(now + 90)


@pytest.mark.parametrize("name", ["model", "name"])
async def test_show_reports_capabilities_and_refuses_unknown_models(make, name):
    card = await make().answer("/api/show", {name: "fake:latest"})
    assert "insert" not in card["capabilities"]
    tokens = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3}
    _, card = await make(tokenizer=ByteTokenizer(**tokens)).post("/api/show", {name: "fake"})
    assert "insert" in card["capabilities"]
    assert (
        await refused(make(), "/api/show", {name: "x"}, 404)
        == "model 'x' not found: this server has `fake`"
    )
    assert "model is required" in await refused(make(), "/api/show", {})


async def test_pull_succeeds_for_a_known_model_only(make):
    response = await make().call("POST", "/api/pull", {"model": "fake"})
    assert response.content_type == "application/x-ndjson"
    statuses = [orjson.loads(line)["status"] for line in response.body.splitlines()]
    assert statuses == ["pulling manifest", "success"]
    assert await make().post("/api/pull", {"name": "fake", "stream": False}) == (
        200,
        {"status": "success"},
    )
    error = await refused(make(), "/api/pull", {"model": "x"}, 404)
    assert error.startswith("model 'x' not found: this server has `fake`; it cannot be downloaded")


@pytest.mark.parametrize(
    ("method", "path", "what"),
    [
        ("POST", "/api/push", "push"),
        ("POST", "/api/create", "create"),
        ("POST", "/api/copy", "copy"),
        ("DELETE", "/api/delete", "delete"),
        ("POST", "/api/blobs/sha256:abc", "blobs"),
    ],
)
async def test_requests_that_change_models_are_refused(make, method, path, what):
    response = await make().call(method, path, {"model": "fake"})
    assert response.status == 400
    assert orjson.loads(response.body)["error"].startswith(f"{what} is not supported:")


# Embeddings for Ollama's clients.


@pytest.mark.parametrize(
    ("given", "number"), [("ab", 1), (["a", "b"], 2), ("", 0), ([], 0), (None, 0)]
)
async def test_embed_returns_a_unit_vector_for_each_input(make_encoder_api, given, number):
    api = make_encoder_api(served_encoder())
    answer = await api.answer("/api/embed", {"model": "fake:latest", "input": given})
    assert answer["model"] == "fake:latest"
    assert len(answer["embeddings"]) == number
    assert all(abs(np.linalg.norm(row) - 1) < 1e-5 for row in answer["embeddings"])
    assert (answer["prompt_eval_count"] > 0) is (number > 0)
    assert answer["total_duration"] >= answer["load_duration"] >= 0


async def test_older_embeddings_endpoint_returns_the_same_vector(make_encoder_api):
    api = make_encoder_api(served_encoder())
    _, new = await api.post("/api/embed", {"model": "fake", "input": "ab"})
    body = {"model": "fake", "prompt": "ab"}
    assert await api.post("/api/embeddings", body) == (200, {"embedding": new["embeddings"][0]})
    body = {"model": "fake"}
    assert await api.post("/api/embeddings", body) == (200, {"embedding": []})


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"input": 5}, "input must be"), ({"input": ["a"] * 9}, "input must have at most 8 entries"),
     ({"keep_alive": "five"}, "keep_alive must be"), ({"options": 5}, "options must be"),
     ({"input": "a", "truncate": 5}, "truncate must be"),
     ({"input": "a" * 65, "truncate": False}, "maximum context length is 64 tokens"),
     ({"input": "a", "dimensions": 0}, "dimensions must be from 1")],
)  # fmt: skip
async def test_invalid_embed_fields_are_refused(make_encoder_api, fields, words):
    api = make_encoder_api(served_encoder(max_inputs=8))
    status, answer = await api.post("/api/embed", {"model": "fake", **fields})
    assert status == 400
    assert words in answer["error"]


@pytest.mark.parametrize(("path", "field"), [("embed", "input"), ("embeddings", "prompt")])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_ctx": "2048"}, "options.num_ctx must be an integer or a number"),
        ({"num_ctx": 1.5}, "options.num_ctx must be an integer, not 1.5"),
        ({"temperature": "hot"}, "options.temperature must be a number"),
        ({"use_mmap": 5}, "options.use_mmap must be"),
        ({"num_ctx": 2048.0, "temperature": 0.5, "unknown": []}, None),
    ],
)
async def test_options_of_embeddings_have_their_types(
    make_encoder_api, path, field, options, words
):
    api = make_encoder_api(served_encoder())
    body = {"model": "fake", field: "a", "options": options}
    status, answer = await api.post(f"/api/{path}", body)
    assert status == (200 if words is None else 400)
    assert words is None or answer["error"].startswith(words)


@pytest.mark.parametrize(("path", "field"), [("embed", "input"), ("embeddings", "prompt")])
async def test_document_instruction_precedes_the_text(make_encoder_api, path, field):
    api = make_encoder_api(served_encoder(document_instruction="doc: "))
    await api.answer(f"/api/{path}", {"model": "fake", field: "ab"})
    [([text], _)] = api.served[0].backend.encoded
    assert bytes(text.token_ids[1:-1].tolist()) == b"doc: ab"


@pytest.mark.parametrize("path", ["embed", "embeddings"])
async def test_keep_alive_of_a_permanent_encoder_warns(make_encoder_api, path):
    api = make_encoder_api(served_encoder())
    response = await api.call("POST", f"/api/{path}", {"model": "fake", "keep_alive": 0})
    assert response.status == 200
    assert "keep_alive changes nothing" in dict(response.headers)["Warning"]
