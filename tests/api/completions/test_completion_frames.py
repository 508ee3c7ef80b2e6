"""Bodies and chunks of completions, in both dialects."""

from __future__ import annotations

from tests.api.completions.completion_requests import BODY, STREAM, V1, V3
from tests.fakes import FakeStream


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
