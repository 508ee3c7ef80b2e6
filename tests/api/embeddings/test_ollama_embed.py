"""Vectors for Ollama's clients."""

from __future__ import annotations

import numpy as np
import pytest

from tests.api.encoder_api import served_encoder


@pytest.mark.parametrize(
    ("given", "number"), [("ab", 1), (["a", "b"], 2), ("", 0), ([], 0), (None, 0)]
)
async def test_vectors(make_encoder_api, given, number):
    api = make_encoder_api(served_encoder())
    status, answer = await api.post("/api/embed", {"model": "fake:latest", "input": given})
    assert status == 200, answer
    assert answer["model"] == "fake:latest"
    assert len(answer["embeddings"]) == number
    assert all(abs(np.linalg.norm(row) - 1) < 1e-5 for row in answer["embeddings"])
    assert (answer["prompt_eval_count"] > 0) is (number > 0)
    assert answer["total_duration"] >= answer["load_duration"] >= 0


async def test_the_older_endpoint(make_encoder_api):
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
async def test_refusals(make_encoder_api, fields, words):
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
async def test_options_have_their_types(make_encoder_api, path, field, options, words):
    api = make_encoder_api(served_encoder())
    body = {"model": "fake", field: "a", "options": options}
    status, answer = await api.post(f"/api/{path}", body)
    assert status == (200 if words is None else 400)
    assert words is None or answer["error"].startswith(words)


async def test_longer_texts_are_cut(make_encoder_api):
    api = make_encoder_api(served_encoder())
    status, answer = await api.post("/api/embed", {"model": "fake", "input": "a" * 99})
    assert (status, answer["prompt_eval_count"]) == (200, 64)


@pytest.mark.parametrize(("path", "field"), [("embed", "input"), ("embeddings", "prompt")])
async def test_the_operators_instruction_stands_before_documents(make_encoder_api, path, field):
    api = make_encoder_api(served_encoder(document_instruction="doc: "))
    status, _ = await api.post(f"/api/{path}", {"model": "fake", field: "ab"})
    assert status == 200
    [([text], _)] = api.served[0].backend.encoded
    assert bytes(text.token_ids[1:-1].tolist()) == b"doc: ab"


@pytest.mark.parametrize("path", ["embed", "embeddings"])
async def test_a_model_that_stays_is_said_to_stay(make_encoder_api, path):
    api = make_encoder_api(served_encoder())
    response = await api.call("POST", f"/api/{path}", {"model": "fake", "keep_alive": 0})
    assert response.status == 200
    assert "keep_alive changes nothing" in dict(response.headers)["Warning"]
