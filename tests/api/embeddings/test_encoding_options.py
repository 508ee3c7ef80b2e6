from __future__ import annotations

import pytest

from fastovms.api.embeddings.embedding_schemas import EmbeddingRequest
from fastovms.api.embeddings.encoding_options import answer_id, read_limit
from fastovms.api.embeddings.input_texts import TextLimit
from fastovms.encoding import Task
from fastovms.errors import InvalidField
from tests.api.encoder_api import served_encoder


@pytest.mark.parametrize(
    ("fields", "truncates", "limit"),
    [
        ({}, False, TextLimit(62)),
        ({}, True, TextLimit(62, truncates=True)),
        ({"truncate_prompt_tokens": -1}, False, TextLimit(62, truncates=True)),
        ({"truncate_prompt_tokens": 5, "truncation_side": "left"}, False, TextLimit(3, True, True)),
    ],
)
def test_limits(fields, truncates, limit):
    served = served_encoder(truncate=truncates)
    assert read_limit(EmbeddingRequest(**fields), served, 2) == limit
    served.tokenizing.close()


def test_no_room():
    served = served_encoder(max_model_len=2)
    with pytest.raises(InvalidField, match="has no room"):
        read_limit(EmbeddingRequest(), served, 2)
    served.tokenizing.close()


def test_ids():
    assert answer_id(EmbeddingRequest(), "embd-", "1") == "embd-1"
    assert answer_id(EmbeddingRequest(request_id="a"), "embd-", "1") == "embd-a"


@pytest.mark.parametrize(
    ("path", "fields", "task"),
    [
        ("/embeddings", {"input": "a"}, Task.EMBEDDINGS),
        ("/rerank", {"query": "a", "documents": ["b"]}, Task.RERANK),
        ("/score", {"text_1": "a", "text_2": "b"}, Task.RERANK),
    ],
)
@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
@pytest.mark.parametrize(
    ("priority", "is_taken"),
    [(-5, True), (2**63 - 1, True), (2**63, False), (2**70, False), ("1", False)],
)
async def test_priorities(make_encoder_api, path, fields, task, prefix, priority, is_taken):
    api = make_encoder_api(served_encoder(task))
    body = {"model": "fake", **fields, "priority": priority}
    status, answer = await api.post(prefix + path, body)
    assert (status == 200) is is_taken, answer
    assert is_taken or "priority" in str(answer["error"])
