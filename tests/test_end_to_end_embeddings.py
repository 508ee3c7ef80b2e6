"""A real server with an embedding model, a reranker and a model that generates, asked by real
clients."""

from __future__ import annotations

import base64
import json

import numpy as np
import openai
import openvino_genai
import pytest

from fastovms.server_config import DEMO_MODEL
from tests.encoder_models import encoder_dir
from tests.real_server import PROMPT, start_server, stop_server

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
TEXTS = ["the model of the river", "a b", "open fast " * 20]


@pytest.fixture(scope="module")
def server():
    models = (f"emb={encoder_dir()}", f"rank={encoder_dir(1)}", str(DEMO_MODEL))
    flags = [part for model in models for part in ("--model", model)]
    server = start_server(
        *flags, "--plugin-config", json.dumps(EXACT), "--state-dir", ":memory:", "--no-tune"
    )
    yield server
    stop_server(server)


@pytest.mark.nightly(
    but=(
        "float-/v1",
        "base64-/v3",
    )
)
@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
@pytest.mark.parametrize("encoding_format", ["float", "base64", openai.omit])
def test_vectors_are_those_of_genai(server, prefix, encoding_format):
    with server.client(prefix) as client:
        found = client.embeddings.create(model="emb", input=TEXTS, encoding_format=encoding_format)
    vectors = [each.embedding for each in found.data]
    if encoding_format == "base64":
        vectors = [np.frombuffer(base64.b64decode(each), np.float32) for each in vectors]
    pipeline = openvino_genai.TextEmbeddingPipeline(encoder_dir(), "CPU", **EXACT)
    np.testing.assert_allclose(vectors, pipeline.embed_documents(TEXTS), atol=1e-5)
    assert found.usage.total_tokens == found.usage.prompt_tokens > 0


def test_scores_are_those_of_genai(server):
    body = {"model": "rank", "query": "the model", "documents": TEXTS}
    results = server.send("POST", "/v3/rerank", body).json["results"]
    pipeline = openvino_genai.TextRerankPipeline(encoder_dir(1), "CPU", top_n=9, **EXACT)
    theirs = pipeline.rerank("the model", TEXTS)
    assert [each["index"] for each in results] == [index for index, _ in theirs]
    found = [each["relevance_score"] for each in results]
    np.testing.assert_allclose(found, [score for _, score in theirs], atol=1e-5)


def test_models_of_both_kinds_share_a_server(server):
    with server.client("/v1") as client:
        stream = client.completions.create(
            model="demo_model", prompt=PROMPT, max_tokens=100, stream=True
        )
        chunks = iter(stream)
        next(chunks)
        found = client.embeddings.create(model="emb", input=TEXTS * 100)
        assert len(found.data) == 300
        assert sum(1 for _ in chunks) > 1
        with pytest.raises(openai.BadRequestError, match="it makes vectors of texts"):
            client.completions.create(model="emb", prompt=PROMPT)
        with pytest.raises(openai.BadRequestError, match="it generates text"):
            client.embeddings.create(model="demo_model", input="a")
        kinds = {model.id: model.capabilities for model in client.models.list()}
    assert kinds["emb"] == ["embedding"]
    assert kinds["rank"] == ["rerank"]
