"""Bodies and chunks of chats, in both dialects."""

from __future__ import annotations

import pytest

from tests.api.chat_models import call_text, tool
from tests.api.chats import BODY, THOUGHT, V1, V3, make
from tests.fakes import FakeStream

__all__ = ["make"]


async def test_stream_of_openai(make):
    stream = FakeStream()
    body = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
    assert await make("hi").call("POST", V1, body, stream) is None
    *chunks, usage, done = stream.events
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None,
          "finish_reason": None}],
        [{"index": 0, "delta": {"content": "h"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "i"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop",
          "stop_reason": None}],
    ]  # fmt: skip
    assert all(chunk["usage"] is None for chunk in chunks)
    assert {event["object"] for event in (*chunks, usage)} == {"chat.completion.chunk"}
    assert {event["id"] for event in (*chunks, usage)} == {"chatcmpl-" + 32 * "0"}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert done == "[DONE]"
    assert len(stream.writes) == 3, "the last delta, usage and end share one write"


async def test_stream_of_ovms(make):
    body = {**BODY, "stream_options": {"include_usage": True}}
    *chunks, usage, _ = await make("hi").stream(V3, body)
    handshake = {"role": "assistant", "content": None}
    assert chunks[0]["choices"] == [{"index": 0, "delta": handshake, "finish_reason": None}]
    assert "usage" not in chunks[0]
    assert "id" not in chunks[0]
    assert all(chunk["usage"] is None for chunk in chunks[1:])
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:]] == [
        {"content": "h"}, {"content": "i"}, {},
    ]  # fmt: skip
    assert usage["usage"]["total_tokens"] == 9


async def test_running_usage(make):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await make("hi").stream(V1, {**BODY, "stream_options": options})
    assert [event["usage"] and event["usage"]["completion_tokens"] for event in events[:-1]] == [
        0, 1, 2, 3, 3,
    ]  # fmt: skip


@pytest.mark.parametrize("fields", [{}, {"use_beam_search": True, "n": 2}])
async def test_a_step_of_many_tokens_is_one_delta(make, fields):
    text = THOUGHT + call_text()
    events = await make(text, tokens_per_step=1000).stream(
        V1, {**BODY, "tools": [tool()], **fields}
    )
    deltas = [e["choices"][0]["delta"] for e in events[:-1] if e["choices"][0]["index"] == 0]
    assert [list(delta) for delta in deltas] == [
        ["role", "content"], ["reasoning_content", "reasoning"], ["content"], ["tool_calls"],
        ["tool_calls"], [],
    ]  # fmt: skip
