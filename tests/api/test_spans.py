"""Tests of the spans of every endpoint that generates."""

from __future__ import annotations

import asyncio

import pytest

from fastovms.telemetry.tracing import GenerationKind
from tests.api.chat_models import chat_model
from tests.api.fake_tracer import FakeTracer
from tests.fakes import FakeStream

CHAT = {"messages": [{"role": "user", "content": "a"}]}
BODIES = {"completions": {"prompt": "a"}, "chat/completions": CHAT, "responses": {"input": "a"}}
OPERATIONS = {
    "completions": GenerationKind.TEXT_COMPLETION,
    "chat/completions": GenerationKind.CHAT,
    "responses": GenerationKind.CHAT,
}


@pytest.fixture
def tracer() -> FakeTracer:
    return FakeTracer()


def make(make_api, tracer: FakeTracer, **changes: object):
    api = make_api("hello", chat=chat_model(), tracer=tracer, **changes)
    api.backend.queue_time = 0.0
    return api


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", BODIES)
async def test_span_of_a_generation_has_begin_and_end(make_api, tracer, name, streamed):
    api = make(make_api, tracer)
    body = {"model": "fake", **BODIES[name]}
    if streamed:
        await api.stream(f"/v1/{name}", body)
    else:
        _, answer = await api.post(f"/v1/{name}", body)
        assert tracer.spans[0].start.response_id == answer["id"]
    start, end = tracer.only
    assert start.kind is OPERATIONS[name]
    assert (start.request_id, start.asked_model, start.model) == ("req-1", "fake", "fake")
    assert start.is_streamed is streamed
    assert api.last_request.trace == tracer.spans[0].context
    assert (list(end.finish_reasons), end.error) == (["stop"], None)
    assert end.num_prompt_tokens > 0
    assert end.num_generated_tokens == len("hello") + 1
    assert [phase.name for phase in end.phases] == ["queue", "prefill", "decode"]
    ages = [phase.age for phase in end.phases]
    assert ages == sorted(ages, reverse=True)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", BODIES)
async def test_span_of_a_failed_generation_has_the_error(make_api, tracer, name, streamed):
    api = make(make_api, tracer)
    api.backend.fail_after = 2
    body = {"model": "fake", "stream": streamed, **BODIES[name]}
    await api.call("POST", f"/v1/{name}", body, FakeStream())
    _, end = tracer.only
    assert end.error is not None
    assert "out of order" in end.error[1]


async def test_span_of_a_cancelled_generation_has_the_cancellation(make_api, tracer):
    api = make(make_api, tracer)
    api.backend.paused = True
    body = {"model": "fake", "prompt": "a", "n": 2}
    task = asyncio.create_task(api.call("POST", "/v1/completions", body, FakeStream()))
    await api.backend.received.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    _, end = tracer.only
    assert (list(end.finish_reasons), end.error) == (["abort", "abort"], None)


async def test_span_of_a_background_response_has_its_conversation(make_api, tracer, make_state):
    state = make_state()
    api = make(make_api, tracer, state=state)
    _, conversation = await api.post("/v1/conversations", {})
    body = {"model": "fake", "input": "a", "background": True, "conversation": conversation["id"]}
    await api.answer("/v1/responses", body)
    await state.runs.drain(60)
    start, end = tracer.only
    assert start.conversation_id == conversation["id"]
    assert list(end.finish_reasons) == ["stop"]
