"""Bodies and chunks of completions, in both dialects."""

from __future__ import annotations

import pytest

from tests.api.completions.completion_requests import BODY, V1


async def test_unary_body_of_openai(make_api):
    status, body = await make_api("hello").post(V1, BODY)
    assert status == 200
    assert body == {
        "id": "cmpl-" + 32 * "0",
        "object": "text_completion",
        "created": 1_750_000_000,
        "model": "fake",
        "system_fingerprint": "fp_test",
        "choices": [
            {
                "index": 0,
                "text": "hello",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
            }
        ],
        "service_tier": None,
        "kv_transfer_params": None,
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 6,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


@pytest.mark.parametrize("path", ["/v3/completions", "/v3/v1/completions"])
async def test_unary_body_of_ovms(make_api, path):
    status, body = await make_api("hello").post(path, BODY)
    assert status == 200
    assert set(body) == {"object", "created", "model", "choices", "usage"}
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "hello", "logprobs": None, "finish_reason": "stop"}
    ]


async def test_cached_tokens_are_reported(make_api):
    api = make_api()
    api.backend.num_cached_tokens = 1
    _, body = await api.post(V1, {**BODY, "prompt": ["ab", "cd"]})
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
