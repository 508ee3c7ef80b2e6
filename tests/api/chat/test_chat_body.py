"""Bodies and chunks of chats, in both dialects."""

from __future__ import annotations

import pytest

from tests.api.chats import BODY, V1, V3, make

__all__ = ["make"]


async def test_unary_body_of_openai(make):
    status, body = await make().post(V1, BODY)
    assert status == 200
    assert body == {
        "id": "chatcmpl-" + 32 * "0",
        "object": "chat.completion",
        "created": 1_750_000_000,
        "model": "fake",
        "system_fingerprint": "fp_test",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello!",
                    "refusal": None,
                    "annotations": [],
                    "audio": None,
                    "function_call": None,
                    "reasoning_content": None,
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "service_tier": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "kv_transfer_params": None,
        "usage": {
            "prompt_tokens": 6,
            "completion_tokens": 7,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


@pytest.mark.parametrize("path", [V3, "/v3/v1/chat/completions"])
async def test_unary_body_of_ovms(make, path):
    status, body = await make().post(path, BODY)
    assert status == 200
    assert set(body) == {"object", "created", "model", "choices", "usage"}
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello!", "tool_calls": []},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
