"""The response object has every member."""

from __future__ import annotations

import pytest

from tests.api.responses.conftest import BODY, V1, V3, ask

REQUIRED = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
    "previous_response_id", "instructions", "output", "error", "tools", "tool_choice",
    "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty",
    "frequency_penalty", "top_logprobs", "temperature", "reasoning", "user", "usage",
    "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata",
    "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "conversation",
}  # fmt: skip


@pytest.mark.parametrize("path", [V1, V3, "/v3/v1/responses"])
async def test_every_member_is_there(make, path):
    status, body = await ask(make(), "POST", path, BODY)
    assert status == 200
    assert set(body) == REQUIRED
    assert body["object"] == "response"
    assert body["created_at"] == body["completed_at"] == 1_750_000_000
    assert body["usage"] == {
        "input_tokens": 6,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 13,
    }
    [message] = body["output"]
    assert message["content"] == [
        {"type": "output_text", "text": "Hello!", "annotations": [], "logprobs": []}
    ]
