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
     ({"input": "a", "dimensions": 0}, "dimensions must be from 1")],
)  # fmt: skip
async def test_refusals(make_encoder_api, fields, words):
    api = make_encoder_api(served_encoder(max_inputs=8))
    status, answer = await api.post("/api/embed", {"model": "fake", **fields})
    assert status == 400
    assert words in answer["error"]
