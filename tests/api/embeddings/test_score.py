from __future__ import annotations

import numpy as np
import pytest

from fastovms.encoding import Task
from tests.api.embeddings.test_rerank import logit, sigmoid
from tests.api.encoder_api import served_encoder


@pytest.mark.parametrize(
    ("first", "second"),
    [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")],
)
@pytest.mark.parametrize(
    ("one", "other", "documents"),
    [("q", "a", "a"), ("q", ["a", "b"], "ab"), (["q", "r"], ["a", "b"], "ab"), (["q"], "b", "b")],
)
async def test_pairs(make_encoder_api, first, second, one, other, documents):
    api = make_encoder_api(served_encoder(Task.RERANK))
    status, answer = await api.post("/v1/score", {first: one, second: other})
    assert status == 200, answer
    found = [each["score"] for each in answer["data"]]
    np.testing.assert_allclose(found, [sigmoid(logit(each)) for each in documents], rtol=1e-6)
    assert answer["usage"]["prompt_tokens"] == 5 * len(documents)


async def test_vectors_are_compared(make_encoder_api):
    api = make_encoder_api(served_encoder())
    status, answer = await api.post("/score", {"text_1": "a", "text_2": ["a", "bcd"]})
    assert status == 200
    same, other = (each["score"] for each in answer["data"])
    assert same == pytest.approx(1)
    assert 0 < other < 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text_1"),
        ({"text_1": "a"}, "text_1"),
        ({"text_1": "a", "documents": "b"}, "text_1"),
        ({"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
        ({"text_1": [], "text_2": "b"}, "text_1"),
        ({"text_1": "a", "text_2": ["b", ""]}, "text_2[1]"),
        ({"text_1": "a", "text_2": ["b"] * 5}, "text_2"),
        ({"text_1": "a", "text_2": "b" * 100}, "text_2"),
        ({"text_1": "a", "text_2": "b" * 61}, "text_2"),
    ],
)
async def test_wrong_values(make_encoder_api, body, param):
    api = make_encoder_api(served_encoder(Task.RERANK, max_inputs=4))
    status, answer = await api.post("/v1/score", body)
    assert (status, answer["error"]["param"]) == (400, param)
