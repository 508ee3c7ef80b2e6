"""Tests of `fastovms/api/answer.py`."""

from __future__ import annotations

import asyncio

import msgspec
import orjson
import pytest

from fastovms.api.answer import closing_members, finish_word, usage_body
from fastovms.api.generate import Usage
from fastovms.errors import BackendUnavailable, EngineFailed, Overloaded, RequestError
from fastovms.params import FinishReason
from fastovms.telemetry.metrics import SampleTimings
from tests.api.completion_requests import BODY, STREAM, V1, V3, texts
from tests.fakes import FakeStream

# A failure before the first byte has its own status.


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (Overloaded("busy", retry_after=2.2), 429, (("Retry-After", "3"),)),
        (BackendUnavailable("loading"), 503, (("Retry-After", "1"),)),
        (EngineFailed("boom"), 500, ()),
        (RequestError("does not fit", param="prompt"), 400, ()),
        (ZeroDivisionError("a secret"), 500, ()),
    ],
)
@pytest.mark.parametrize("path", [V1, V3])
@pytest.mark.parametrize("streamed", [False, True])
async def test_errors_of_the_backend(make_api, path, error, status, headers, streamed):
    api = make_api()
    api.backend.submit_error = error
    stream = FakeStream()
    response = await api.call("POST", path, {**BODY, "stream": streamed}, stream)
    assert (response.status, response.headers) == (status, headers)
    assert not stream.started
    message = orjson.loads(response.body)["error"]
    message = message["message"] if path == V1 else message
    assert message == ("internal server error" if "secret" in str(error) else str(error))


# The members that every part of an answer repeats.


@pytest.mark.parametrize(
    ("reason", "are_whole", "word"),
    [
        (FinishReason.STOP, [], "stop"),
        (FinishReason.STOP, [True, True], "tool_calls"),
        (FinishReason.STOP, [True, False], "stop"),
        (FinishReason.LENGTH, [True], "length"),
    ],
)
def test_finish_word_names_calls_only_if_all_are_complete(reason, are_whole, word):
    assert finish_word(reason, are_whole) == word


def test_closing_members_have_timings_in_milliseconds() -> None:
    usage = Usage(3, 5, 1, None, SampleTimings(0.002, 0.25, 1.0, 5, 2))
    assert msgspec.to_builtins(closing_members(usage)) == {
        "usage": msgspec.to_builtins(usage_body(usage)),
        "metrics": {
            "time_to_first_token_ms": 250.0,
            "generation_time_ms": 1000.0,
            "queue_time_ms": 2.0,
            "mean_itl_ms": 250.0,
            "tokens_per_second": 4.0,
            "accepted_draft_tokens": 2,
        },
    }
    assert set(closing_members(Usage(3, 5, 1))) == {"usage"}


# Streams: deltas are merged while a client does not read, cut after a limit, and ended by errors.


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
