"""What Ollama's clients ask about models."""

from __future__ import annotations

from types import SimpleNamespace

import orjson
import pytest

from fastovms.api.ollama.timestamps import timestamp
from tests.api.ollama.ollama_requests import make, refused
from tests.fakes import ByteTokenizer

__all__ = ["make"]


async def get(api, path: str):
    response = await api.call("GET", path)
    assert response.status == 200
    return orjson.loads(response.body)


async def test_lists(make):
    api = make()
    assert (await get(api, "/api/version"))["version"].count(".") == 2
    [model] = (await get(api, "/api/tags"))["models"]
    assert (model["name"], model["modified_at"]) == ("fake", "2023-11-14T22:13:20.000000Z")
    [model] = (await get(api, "/api/ps"))["models"]
    assert (model["name"], model["context_length"]) == ("fake", 2000)
    assert model["expires_at"].startswith("21")
    [known] = api.context.models.known
    known.served, known.aliases = None, ("alias",)
    assert (await get(api, "/api/ps"))["models"] == []
    assert [m["name"] for m in (await get(api, "/api/tags"))["models"]] == ["fake", "alias"]


async def test_a_model_that_will_leave(make):
    api = make()
    api.context.models.holder = SimpleNamespace(seconds_to_leave=lambda name: 90.0)
    now = api.context.unix_time()
    [model] = (await get(api, "/api/ps"))["models"]
    assert model["expires_at"] == timestamp(now + 90)


@pytest.mark.parametrize("name", ["model", "name"])
async def test_one_model(make, name):
    status, card = await make().post("/api/show", {name: "fake:latest"})
    assert status == 200
    assert "insert" not in card["capabilities"]
    tokens = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3}
    _, card = await make(tokenizer=ByteTokenizer(**tokens)).post("/api/show", {name: "fake"})
    assert "insert" in card["capabilities"]
    assert await refused(make(), "/api/show", {name: "x"}, 404) == "model 'x' not found"
    assert "model is required" in await refused(make(), "/api/show", {})


async def test_pulls(make):
    response = await make().call("POST", "/api/pull", {"model": "fake"})
    assert response.content_type == "application/x-ndjson"
    statuses = [orjson.loads(line)["status"] for line in response.body.splitlines()]
    assert statuses == ["pulling manifest", "success"]
    assert await make().post("/api/pull", {"name": "fake", "stream": False}) == (
        200,
        {"status": "success"},
    )
    error = await refused(make(), "/api/pull", {"model": "x"}, 404)
    assert error.startswith("model 'x' not found, and none is pulled")


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
async def test_models_are_not_changed(make, method, path, what):
    response = await make().call(method, path, {"model": "fake"})
    assert response.status == 400
    assert orjson.loads(response.body)["error"].startswith(f"this server does not do {what}:")
