"""Tests of `fastovms/api/answer.py`."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import orjson
import pytest

from fastovms.api.answer import Envelope, StreamUsage, closing_members, usage_body
from fastovms.api.dialect import OPENAI, OVMS, Dialect
from fastovms.api.generate import TextGeneration, Usage
from fastovms.api.request_schemas import StreamOptions
from fastovms.config import ApiConfig
from fastovms.errors import BackendUnavailable, EngineFailed, Overloaded, RequestError
from fastovms.telemetry.metrics import SampleTimings
from tests.api.completion_requests import BODY, STREAM, V1, V3, texts
from tests.fakes import FakeStream

# What fails before the first byte has a status of its own.


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


async def test_failure_before_the_first_byte_is_a_real_status(make_api):
    api = make_api()
    api.backend.fail_after = 0
    for streamed in (False, True):
        response = await api.call("POST", V1, {**BODY, "stream": streamed}, FakeStream())
        assert response.status == 500
        assert orjson.loads(response.body)["error"]["type"] == "server_error"


# The members that every part of an answer repeats.


COMMON = {"object": "kind", "created": 5, "model": "m"}


@pytest.mark.parametrize(
    ("dialect", "members"),
    [(OPENAI, {"id": "i", **COMMON, "system_fingerprint": "f"}), (OVMS, COMMON)],
)
def test_only_one_dialect_has_ids(dialect: Dialect, members: dict[str, object]) -> None:
    assert Envelope("i", 5, "m", "f", dialect).members("kind") == members


@pytest.mark.parametrize("reasoning", [None, 0, 2])
def test_usage_counts_reasoning_if_it_is_parsed(reasoning: int | None) -> None:
    told = msgspec.to_builtins(usage_body(Usage(3, 4, 1, reasoning)))
    details = told.pop("completion_tokens_details", None)
    assert details == (None if reasoning is None else {"reasoning_tokens": reasoning})
    assert told == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


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


# Which frames of a stream carry `usage`.


class FakeGeneration:
    usage = Usage(5, 9, 0, None)

    def usage_of(self, choice: int) -> Usage:
        return Usage(5, choice, 0, None)


def stream_usage(**options: bool) -> StreamUsage:
    return StreamUsage(cast(TextGeneration, FakeGeneration()), StreamOptions(**options))


ALL: dict[str, Any] = {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    ("options", "of_choice", "has_last"),
    [
        ({}, b"", False),
        ({"continuous_usage_stats": True}, b"", False),
        ({"include_usage": True}, b',"usage":null', True),
        (ALL, b',"usage":' + msgspec.json.encode(usage_body(Usage(5, 3, 0, None))), True),
    ],
)
def test_frames_with_usage(options: dict[str, bool], of_choice: bytes, has_last: bool) -> None:
    usage = stream_usage(**options)
    assert usage.member(3) == of_choice
    assert usage.is_continuous == (options == ALL)
    assert (usage.last_frame(b'data: {"choices":[') != b"") is has_last


def test_frame_of_several_choices_has_null_usage() -> None:
    assert stream_usage(**ALL).member(None) == b',"usage":null'


def test_last_frame_has_usage_and_no_choices() -> None:
    frame = stream_usage(include_usage=True).last_frame(b'data: {"choices":[')
    body = orjson.loads(frame.removeprefix(b"data: "))
    assert body == {"choices": [], "usage": msgspec.to_builtins(usage_body(FakeGeneration.usage))}


# Streams: merged while a client does not read, cut where it never does, and ended by errors.


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
