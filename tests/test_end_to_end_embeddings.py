"""A real server with an embedding model, a reranker and a model that generates, asked by real
clients."""

from __future__ import annotations

import base64
import json

import numpy as np
import openai
import openvino as ov
import openvino_genai
import pytest

from fastovms.server_config import DEMO_MODEL
from tests.encoder_models import encoder_dir, picture_encoder_dir
from tests.media.pictures import CORNERS, corners, encode, png
from tests.real_server import PROMPT, start_server, stop_server

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
TEXTS = ["the model of the river", "a b", "open fast " * 20]


@pytest.fixture(scope="module")
def server():
    models = (
        *(f"emb={encoder_dir()}", f"rank={encoder_dir(1)}", str(DEMO_MODEL)),
        f"pictures={picture_encoder_dir()}",
    )
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


# Texts with images.

CARD = "Represent the user's input."
SYSTEM = {"role": "system", "content": [{"type": "text", "text": "Find it."}]}
ANSWER = {"role": "assistant", "content": [{"type": "text", "text": ""}]}


def image(data: bytes) -> dict[str, object]:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


PICTURE = image(encode(corners(), "PNG"))


def user(*parts: object) -> dict[str, object]:
    return {"role": "user", "content": list(parts)}


@pytest.fixture(scope="module")
def pipeline() -> openvino_genai.EmbeddingPipeline:
    return openvino_genai.EmbeddingPipeline(picture_encoder_dir(), "CPU", **EXACT)


def by_pipeline(
    pipeline: openvino_genai.EmbeddingPipeline, words: str, num_images: int, prompt: str = CARD
) -> np.ndarray:
    images = [ov.Tensor(CORNERS[np.newaxis])] * num_images
    return pipeline.embed(words, images=images, embedding_prompt=prompt).embeddings.data[0].copy()


@pytest.mark.nightly(but=("/v1",))
@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
@pytest.mark.parametrize(
    ("messages", "words", "num_images", "prompt"),
    [
        ([user(PICTURE)], "<ov_genai_image_0>", 1, CARD),
        ([user(text("a"), PICTURE, text("b c"))], "a<ov_genai_image_0>b c", 1, CARD),
        ([SYSTEM, user(PICTURE, PICTURE), ANSWER],
         "<ov_genai_image_0><ov_genai_image_1>", 2, "Find it."),
        ([{"role": "user", "content": "a dog"}], "a dog", 0, CARD),
    ],
)  # fmt: skip
def test_vectors_of_images_are_those_of_genai(
    server, pipeline, prefix, messages, words, num_images, prompt
):
    body = {"model": "pictures", "messages": messages, "continue_final_message": True}
    answer = server.send("POST", f"{prefix}/embeddings", body)
    assert answer.status == 200, answer.json
    [found] = answer.json["data"]
    wanted = by_pipeline(pipeline, words, num_images, prompt)
    np.testing.assert_allclose(found["embedding"], wanted, atol=1e-5)
    # The picture of 32 x 16 is enlarged to four tokens at least.
    assert answer.json["usage"]["prompt_tokens"] > 4 * num_images


def test_texts_and_images_of_one_model_are_compared(server, pipeline):
    with server.client("/v1") as client:
        found = client.embeddings.create(model="pictures", input=["a dog", "the river"])
        assert client.models.retrieve("pictures").capabilities == ["embedding"]
    vectors = [by_pipeline(pipeline, words, 0) for words in ("a dog", "the river")]
    np.testing.assert_allclose([each.embedding for each in found.data], vectors, atol=1e-5)
    body = {"model": "pictures", "query": "a dog", "documents": ["the river"]}
    [result] = server.send("POST", "/v3/rerank", body).json["results"]
    assert result["relevance_score"] == pytest.approx(vectors[0] @ vectors[1], abs=1e-5)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": []}, "messages", "must not be empty"),
        ({"messages": [user(PICTURE)], "input": "a"}, "messages", "together with input"),
        ({"messages": [user(PICTURE), user(PICTURE)]}, "messages", "must be one user message"),
        ({"messages": [SYSTEM]}, "messages", "must be one user message"),
        ({"messages": [user(text("<ov_genai_image_0>"))]}, "messages", "stands for an image"),
        ({"messages": [user(PICTURE, text("<|image_pad|>"))]}, "messages", "must not contain"),
        ({"messages": [user(*[PICTURE] * 99)]}, None, "one image too many"),
        ({"messages": [user(image(b"a"))]}, "messages[0].content[0].image_url.url", "image"),
        ({"messages": [user(image(png(1, 300)))]}, "messages[0].content[0].image_url.url",
         "too narrow"),
        ({"messages": [user(text("long " * 3000))]}, "messages", "context"),
        ({"messages": [user(PICTURE)], "dimensions": 65}, "dimensions", "from 1 to 64"),
        ({"input": [1, 2]}, "input", "must be a text for this model"),
        ({"input": "<ov_genai_image_0>"}, "input", "stands for an image"),
    ],
)  # fmt: skip
def test_messages_that_cannot_be_embedded_are_refused(server, fields, param, message):
    answer = server.send("POST", "/v1/embeddings", {"model": "pictures", **fields})
    assert answer.status == 400, answer.json
    error = answer.json["error"]
    assert message in error["message"]
    assert param is None or error["param"] == param
