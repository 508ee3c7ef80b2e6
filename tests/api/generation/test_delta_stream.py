"""Streams: merged while a client does not read, cut where it never does, and ended by errors."""

from __future__ import annotations

import asyncio

import pytest

from fastovms.config.api_config import ApiConfig
from tests.api.completions.completion_requests import BODY, STREAM, V1, V3, texts
from tests.fakes import FakeStream


@pytest.mark.parametrize("path", [V1, V3])
async def test_failure_in_a_stream_is_its_last_event(make_api, path):
    api = make_api("hello")
    api.backend.fail_after = 2
    events = await api.stream(path, {**BODY, "n": 2})
    assert texts(events[:-2]) == {0: "he", 1: "he"}
    error = events[-2]["error"]
    assert (error["message"] if path == V1 else error) == "out of order"
    assert events[-1] == "[DONE]"
    assert api.backend.stats().num_running == 0


async def test_shutdown_in_a_stream(make_api):
    api = make_api("hello" * 5)
    stream = FakeStream()
    task = asyncio.create_task(api.call("POST", V1, STREAM, stream))
    await stream.first_write.wait()
    await api.backend.close()
    assert await task is None
    assert "shutting down" in stream.events[-2]["error"]["message"]


async def test_deltas_merge_while_the_client_does_not_read(make_api):
    api = make_api("abcdef")
    stream = FakeStream()
    stream.writable = False
    api.backend.paused = True
    body = {**STREAM, "n": 2, "stream_options": {"include_usage": True}}
    task = asyncio.create_task(api.call("POST", V1, body, stream))
    await api.backend.received.wait()
    await asyncio.sleep(0)  # the step that was due finds the backend paused
    api.backend.paused = False
    for _ in range(3):
        api.backend.step()
    assert stream.writes == []
    stream.writable = True
    stream.on_writable()
    assert len(stream.writes) == 1
    assert await task is None
    assert texts(stream.events[:-1]) == {0: "abcdef", 1: "abcdef"}
    assert stream.events[0]["choices"][0]["text"] == "abc"


async def test_a_client_that_never_reads_is_cut_off(make_api):
    api = make_api("x" * 50, config=ApiConfig(max_pending_chars=10))
    stream = FakeStream()
    stream.writable = False
    assert await api.call("POST", V1, {**STREAM, "max_tokens": 50}, stream) is None
    assert stream.aborted
    assert stream.writes == []
    assert api.backend.stats().num_running == 0


async def test_text_held_back_at_the_end_is_one_write(make_api):
    stream = FakeStream()
    stream.writable = False
    body = {**STREAM, "n": 2}
    assert await make_api("abc").call("POST", V1, body, stream) is None
    assert len(stream.writes) == 1
    assert texts(stream.events) == {0: "abc", 1: "abc"}
    assert [e["choices"][0]["finish_reason"] for e in stream.events[:-1]] == ["stop", "stop"]
