from __future__ import annotations

import numpy as np
import orjson
import pytest

from fastovms.encoding import Task
from fastovms.errors import Overloaded
from tests.api.encoder_api import CLS, SEP, served_encoder

BODY = {"model": "fake", "query": "q", "documents": ["a", "b", "c"]}


def sigmoid(logit: float) -> float:
    return float(1 / (1 + np.exp(-logit)))


def logit(document: str) -> float:
    return float((sum(document.encode()) + 257) % 7)


@pytest.mark.parametrize("prefix", ["/v1", "/v2", "/v3", ""])
@pytest.mark.parametrize("width", [1, 2])
async def test_documents_are_sorted(make_encoder_api, prefix, width):
    api = make_encoder_api(served_encoder(Task.RERANK, width=width))
    status, answer = await api.post(f"{prefix}/rerank", BODY)
    assert status == 200
    scores = [sigmoid(logit(each)) for each in "abc"]
    best = sorted(range(3), key=lambda i: -scores[i])
    assert [each["index"] for each in answer["results"]] == best
    found = [each["relevance_score"] for each in answer["results"]]
    np.testing.assert_allclose(found, [scores[i] for i in best], rtol=1e-6)
    of_vllm = prefix != "/v3"
    assert ("usage" in answer) == of_vllm
    meta = {
        "api_version": {"version": "2"},
        "tokens": {"input_tokens": 15},
    }
    assert answer.get("meta") == (meta if prefix == "/v2" else None)
    documents = [{"text": "abc"[i]} for i in best] if of_vllm else [None] * 3
    assert [each.get("document") for each in answer["results"]] == documents


@pytest.mark.parametrize(
    ("fields", "num_results", "has_documents"),
    [
        ({"top_n": 2}, 2, False),
        ({"top_n": 0}, 3, False),
        ({"top_n": 9, "return_documents": True}, 3, True),
        ({"documents": [{"text": "a"}, "b"]}, 2, False),
    ],
)
async def test_fields(make_encoder_api, fields, num_results, has_documents):
    api = make_encoder_api(served_encoder(Task.RERANK))
    _, answer = await api.post("/v3/rerank", {**BODY, **fields})
    assert len(answer["results"]) == num_results
    assert all(("document" in each) == has_documents for each in answer["results"])


async def test_logits_as_they_are(make_encoder_api):
    api = make_encoder_api(served_encoder(Task.RERANK))
    _, answer = await api.post("/v1/rerank", {**BODY, "use_activation": False})
    assert {each["relevance_score"] for each in answer["results"]} == set(map(logit, "abc"))


async def test_long_documents_are_scored_in_parts(make_encoder_api):
    """As OVMS does; the best part counts."""
    served = served_encoder(Task.RERANK, max_model_len=10)
    api = make_encoder_api(served)
    body = {"model": "fake", "query": "q", "documents": ["a" * 14, "b"]}
    status, answer = await api.post("/v3/rerank", body)
    assert status == 200
    [(texts, _)] = served.backend.encoded
    assert [len(each.token_ids) for each in texts] == [10, 10, 6, 5]
    assert len(answer["results"]) == 2
    await api.post("/v3/rerank", {**body, "max_chunks_per_doc": 1})
    assert len(served.backend.encoded[1][0]) == 2
    status, answer = await api.post("/v1/rerank", body)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert answer["error"]["param"] == "documents[0]"
    status, _ = await api.post("/v1/rerank", {**body, "truncate_prompt_tokens": -1})
    assert status == 200
    assert [len(each.token_ids) for each in served.backend.encoded[2][0]] == [10, 5]


@pytest.mark.parametrize("prefix", ["/v1", "/v2", "/v3"])
async def test_documents_are_cut_where_the_client_wants_it(make_encoder_api, prefix):
    served = served_encoder(Task.RERANK, max_model_len=10)
    api = make_encoder_api(served)
    body = {"model": "fake", "query": "q", "documents": ["a" * 14, "b", "c" * 4]}
    status, _ = await api.post(f"{prefix}/rerank", {**body, "max_tokens_per_doc": 3})
    assert status == 200
    [(texts, _)] = served.backend.encoded
    assert [len(each.token_ids) for each in texts] == [7, 5, 7]
    assert texts[2].token_ids.tolist() == [CLS, *b"q", SEP, *b"ccc", SEP]


async def test_texts_whose_vectors_are_compared_are_cut_too(make_encoder_api):
    served = served_encoder(Task.EMBEDDINGS, max_model_len=10)
    api = make_encoder_api(served)
    body = {"model": "fake", "query": "qqqq", "documents": ["aaaa"], "max_tokens_per_doc": 2}
    status, _ = await api.post("/v1/rerank", body)
    assert status == 200
    lengths = [len(each.token_ids) for texts, _ in served.backend.encoded for each in texts]
    assert lengths == [6, 4]


async def test_a_model_that_reads_a_pair_as_one_text_cuts_no_documents(make_encoder_api):
    served = served_encoder(Task.RERANK, joins_pairs=True)
    status, answer = await make_encoder_api(served).post(
        "/v1/rerank", {**BODY, "max_tokens_per_doc": 3}
    )
    assert (status, answer["error"]["param"]) == (400, "max_tokens_per_doc")


@pytest.mark.parametrize(
    ("fields", "error", "status", "words"),
    [
        ({"top_n": -1}, None, 400, "top_n must be at least 0, not -1"),
        ({"documents": ["a" * 100]}, None, 400, "maximum context length is 64 tokens"),
        ({"model": "x"}, None, 404, "The model `x` does not exist."),
        ({}, Overloaded("too many wait"), 429, "too many wait"),
    ],
)
async def test_coheres_clients_read_what_is_wrong(make_encoder_api, fields, error, status, words):
    """They show the member `message` of a 4xx, and retry after what a 429 tells."""
    served = served_encoder(Task.RERANK)
    served.backend.error = error
    api = make_encoder_api(served)
    response = await api.call("POST", "/v2/rerank", {**BODY, **fields})
    assert response.status == status
    assert words in orjson.loads(response.body)["message"]
    assert ("Retry-After" in dict(response.headers)) == (status == 429)
    _, answer = await api.post("/v1/rerank", {**BODY, **fields})
    assert words in answer["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("query", None, "query is required"),
        ("query", "", "query must not be an empty string"),
        ("query", 5, "query"),
        ("documents", None, "documents is required"),
        ("documents", [], "documents must not be an empty list"),
        ("documents", ["a", ""], "documents[1] must be a string that is not empty"),
        ("documents", [{"title": "a"}], "documents[0].text must be a string"),
        ("documents", ["a"] * 5, "documents must have at most 4 entries, not 5"),
        ("documents", ["a" * 2000], "documents must be at most 4"),
        ("top_n", -1, "top_n must be at least 0, not -1"),
        ("max_chunks_per_doc", 0, "max_chunks_per_doc must be at least 1, not 0"),
        ("max_tokens_per_doc", -1, "max_tokens_per_doc must be at least 0, not -1"),
        ("rank_fields", ["text"], "rank_fields is not supported"),
        ("truncation_side", "left", 'truncation_side must be "right"'),
    ],
)
async def test_wrong_values(make_encoder_api, field, value, words):
    api = make_encoder_api(served_encoder(Task.RERANK, max_allowed_chunks=4))
    status, answer = await api.post("/v3/rerank", {**BODY, field: value})
    assert status == 400
    assert words in answer["error"]
    assert api.served[0].backend.encoded == []
