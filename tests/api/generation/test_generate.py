"""How texts end: stop strings, cancellation, prompts that are refused."""

from __future__ import annotations

import asyncio

import pytest

from fastovms.errors import RequestError
from tests.api.completions.completion_requests import BODY, V1, V3, texts
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
