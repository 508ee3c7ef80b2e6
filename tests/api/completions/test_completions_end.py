"""How completions over fakes end: stop strings, failures, cancellation, slow clients."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from fastovms.config import ApiConfig
from fastovms.errors import BackendUnavailable, EngineFailed, Overloaded, RequestError
from tests.api.completions.completion_requests import BODY, STREAM, V1, V3, texts
from tests.fakes import FakeStream


@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
@pytest.mark.parametrize("streamed", [False, True])
async def test_stop_string(make_api, tokens_per_step, streamed):
    api = make_api("one two three", tokens_per_step=tokens_per_step)
    body = {**BODY, "stop": ["xyz", "two"]}
    if streamed:
        events = await api.stream(V1, {**body, "stream_options": {"include_usage": True}})
        assert texts(events) == {0: "one "}
        choice, usage = events[-3]["choices"][0], events[-2]["usage"]
    else:
        _, answer = await api.post(V1, body)
        choice, usage = answer["choices"][0], answer["usage"]
        assert choice["text"] == "one "
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == "two"
    assert usage["completion_tokens"] == len("one two"), "nothing past the stop is counted"
    assert api.backend.stats().num_running == 0
    if tokens_per_step < 100:
        assert (api.backend.submitted[0].request_id, 0) in api.backend.aborted


@pytest.mark.parametrize("tokens_per_step", [1, 100])
@pytest.mark.parametrize(
    ("min_tokens", "text"), [(4, "one "), (7, "one two "), (11, "one two two")]
)
async def test_stop_string_within_min_tokens_is_passed_over(
    make_api, tokens_per_step, min_tokens, text
):
    api = make_api("one two two", tokens_per_step=tokens_per_step)
    _, answer = await api.post(V1, {**BODY, "stop": "two", "min_tokens": min_tokens})
    assert answer["choices"][0]["text"] == text
    assert answer["choices"][0]["stop_reason"] == ("two" if min_tokens < 11 else None)


async def test_stop_string_ends_one_sample_and_not_the_others(make_api):
    api = make_api(lambda request, index: b"one two" if index == 0 else b"three", tokens_per_step=1)
    _, answer = await api.post(V1, {**BODY, "stop": "ne", "n": 2})
    assert [choice["text"] for choice in answer["choices"]] == ["o", "three"]
    assert [choice["stop_reason"] for choice in answer["choices"]] == ["ne", None]


async def test_stop_string_completed_by_the_flush(make_api):
    """The last bytes are an unfinished character, which becomes U+FFFD at the end of the text."""
    api = make_api(lambda request, index: [97, 0xC3])
    _, answer = await api.post(V1, {**BODY, "stop": "\ufffd"})
    assert answer["choices"][0]["text"] == "a"
    assert answer["choices"][0]["stop_reason"] == "\ufffd"


@pytest.mark.parametrize(
    ("path", "fields", "text"),
    [
        (V1, {}, "one "),
        (V1, {"include_stop_str_in_output": True}, "one two"),
        (V1, {"stream": True}, "one "),
        (V1, {"stream": True, "include_stop_str_in_output": True}, "one two"),
        (V3, {}, "one "),
        (V3, {"include_stop_str_in_output": True}, "one two"),
        (V3, {"stream": True}, "one two"),
        (V3, {"stream": True, "include_stop_str_in_output": True}, "one two"),
    ],
)
async def test_stop_string_in_the_text(make_api, path, fields, text):
    api = make_api("one two three")
    body = {**BODY, "stop": "two", **fields}
    if fields.get("stream"):
        assert texts(await api.stream(path, body)) == {0: text}
    else:
        _, answer = await api.post(path, body)
        assert answer["choices"][0]["text"] == text


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


@pytest.mark.parametrize("streamed", [False, True])
async def test_cancellation_frees_the_backend(make_api, streamed):
    api = make_api("hello")
    api.backend.paused = True
    body = {**BODY, "prompt": ["a", "b"], "stream": streamed}
    task = asyncio.create_task(api.call("POST", V1, body, FakeStream()))
    await api.backend.received.wait()
    assert api.backend.stats().num_running == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert api.backend.stats().num_running == 0


async def test_a_prompt_that_is_refused_takes_the_others_with_it(make_api):
    api = make_api()
    api.backend.paused = True
    submit = api.backend.submit

    def refuse_second(request, on_output):
        if api.backend.submitted:
            raise RequestError("too long for the cache", param="prompt")
        submit(request, on_output)

    api.backend.submit = refuse_second
    status, _ = await api.post(V1, {**BODY, "prompt": ["a", "b"]})
    assert status == 400
    assert api.backend.stats().num_running == 0


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
