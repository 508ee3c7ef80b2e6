"""What every endpoint checks first, and what an answer needs to know of its tokens."""

from __future__ import annotations

import pytest

V1, V3 = "/v1/completions", "/v3/completions"
BODY = {"model": "fake", "prompt": "ab"}


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({"temperature": 9, "stop": ["x"] * 99}, "temperature"),
        ({"top_p": 0, "best_of": 1, "n": 2}, "top_p"),
        ({"min_p": 2, "logit_bias": {"999": 1}}, "min_p"),
    ],
)
async def test_numbers_are_checked_before_what_contradicts_itself(make_api, fields, first):
    for path in (V1, V3):
        status, body = await make_api().post(path, {**BODY, **fields})
        message = body["error"]["message"] if path == V1 else body["error"]
        assert (status, message.startswith(first)) == (400, True), message


@pytest.mark.parametrize(("path", "status"), [(V1, 200), (V3, 400)])
async def test_fields_of_audio_are_checked_where_clients_know_them(make_api, path, status):
    found, _ = await make_api().post(path, {**BODY, "chunk_frames": 0})
    assert found == status


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"logprobs": 2}, 2),
        ({"n": 1, "best_of": 3}, 0),  # the best is found by them
        ({"return_token_ids": True}, None),
    ],
)
async def test_log_probabilities_are_asked_for_where_they_matter(make_api, fields, logprobs):
    api = make_api("x")
    assert (await api.post(V1, {**BODY, **fields}))[0] == 200
    assert api.backend.submitted[0].params.logprobs == logprobs
