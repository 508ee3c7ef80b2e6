"""Bodies and chunks of completions, in both dialects."""

from __future__ import annotations

import pytest

from tests.api.completions.completion_requests import BODY, STREAM, V1, V3
from tests.fakes import FakeStream


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
            }
        ],
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


async def test_stream_of_openai(make_api):
    stream = FakeStream()
    body = {**STREAM, "stream_options": {"include_usage": True}}
    assert await make_api("hi").call("POST", V1, body, stream) is None
    *chunks, usage, done = stream.events
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["h", "i", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert all(chunk["object"] == "text_completion" for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert {event["id"] for event in (*chunks, usage)} == {"cmpl-" + 32 * "0"}
    assert done == "[DONE]"
    assert len(stream.writes) == 3, "the last delta, usage and end share one write"


async def test_stream_of_ovms_opens_with_a_handshake_when_the_first_token_has_no_text(make_api):
    events = await make_api("é").stream(V3, BODY)
    assert events[0]["object"] == "text_completion.chunk"
    assert "id" not in events[0]
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["", "é", ""]
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None, None, "stop"]
    events = await make_api("é").stream(V1, BODY)
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["é", ""]


async def test_running_usage(make_api):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await make_api("hi").stream(V1, {**BODY, "stream_options": options})
    assert [event["usage"]["completion_tokens"] for event in events[:-1]] == [1, 2, 3, 3]
    events = await make_api("hi").stream(V1, {**BODY, "stream_options": {}})
    assert not any("usage" in event for event in events[:-1])


async def test_cached_tokens_are_reported(make_api):
    api = make_api()
    api.backend.num_cached_tokens = 1
    _, body = await api.post(V1, {**BODY, "prompt": ["ab", "cd"]})
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
