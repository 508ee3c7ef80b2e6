"""Chat completions over fakes: bodies, reasoning, and the prompts that the model gets."""

from __future__ import annotations

import json

import pytest

from tests.api.chats import BODY, THOUGHT, V1, V3, content_logprobs, join, make

__all__ = ["make"]


@pytest.mark.parametrize("path", [V1, V3])
@pytest.mark.parametrize("tokens_per_step", [1, 3, 1000])
async def test_reasoning(make, path, tokens_per_step):
    api = make(THOUGHT, tokens_per_step=tokens_per_step)
    _, body = await api.post(path, BODY)
    message = body["choices"][0]["message"]
    names = ["reasoning_content", "reasoning"] if path == V1 else ["reasoning_content"]
    assert {name: message.get(name) for name in ("reasoning_content", "reasoning")} == {
        name: "hm, hm" if name in names else None for name in ("reasoning_content", "reasoning")
    }
    assert message["content"] == "Hello!"
    reasoning_tokens = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
    events = await api.stream(path, {**BODY, "stream_options": {"include_usage": True}})
    joined = join(events)[0]
    assert joined == {
        "role": "assistant",
        "content": "Hello!",
        **dict.fromkeys(names, "hm, hm"),
        "calls": [],
        "finish_reason": "stop",
    }
    assert events[-2]["usage"] == body["usage"]
    assert len("hm, hm") <= reasoning_tokens <= len(THOUGHT) - len("Hello!")


async def test_reasoning_that_the_template_has_opened(make):
    kwargs = {"chat_template_kwargs": {"opened": True}}
    _, body = await make("hm</think>Hello!").post(V1, {**BODY, **kwargs})
    message = body["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("hm", "Hello!")


@pytest.mark.parametrize("streamed", [False, True])
async def test_reasoning_may_be_left_out(make, streamed):
    body = {**BODY, "include_reasoning": False, "logprobs": True, "return_token_ids": True}
    api = make(THOUGHT)
    if streamed:
        events = await api.stream(V1, body)
        message, told = join(events)[0], json.dumps(events)
        choices = [event["choices"][0] for event in events[:-1]]
    else:
        _, answer = await api.post(V1, body)
        choices = answer["choices"]
        message, told = choices[0]["message"], json.dumps(answer)
    assert message["content"] == "Hello!"
    assert message.get("reasoning") is None
    assert "".join(entry["token"] for entry in content_logprobs(choices)) == "Hello!"
    assert '"token_ids":[' not in told.replace(" ", "")


async def test_log_probabilities(make):
    api = make("ab")
    body = {**BODY, "logprobs": True, "top_logprobs": 2}
    _, answer = await api.post(V1, body)
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["refusal"] is None
    assert logprobs["content"] == [
        {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [
            {"token": "a", "logprob": -0.5, "bytes": [97]},
            {"token": "b", "logprob": -1.0, "bytes": [98]}]},
        {"token": "b", "logprob": -0.5, "bytes": [98], "top_logprobs": [
            {"token": "b", "logprob": -0.5, "bytes": [98]},
            {"token": "c", "logprob": -1.0, "bytes": [99]}]},
    ]  # fmt: skip
    _, answer = await api.post(V1, {**BODY, "logprobs": True})
    assert [entry["top_logprobs"] for entry in answer["choices"][0]["logprobs"]["content"]] == [
        [], [],
    ]  # fmt: skip


async def test_prompt_log_probabilities(make):
    body = {**BODY, "prompt_logprobs": 1, "return_prompt_text": True}
    _, answer = await make().post(V1, body)
    assert answer["prompt_text"] == "u:Hi;>"
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == 6
    events = await make().stream(V1, {**BODY, "return_prompt_text": True})
    assert events[0]["prompt_text"] == "u:Hi;>"


async def test_stop_string_in_an_answer(make):
    for streamed in (False, True):
        body = {**BODY, "stop": ["lo"]}
        if streamed:
            joined = join(await make().stream(V1, body))[0]
            assert (joined["content"], joined["finish_reason"]) == ("Hel", "stop")
        else:
            _, answer = await make().post(V1, body)
            choice = answer["choices"][0]
            assert (choice["message"]["content"], choice["stop_reason"]) == ("Hel", "lo")
    assert join(await make().stream(V3, body))[0]["content"] == "Hello"


async def test_long_chats_are_rendered_off_the_loop(make):
    api = make()
    messages = [{"role": "user", "content": "x" * 10}] * 150
    status, body = await api.post(V1, {**BODY, "messages": messages})
    assert (status, body["usage"]["prompt_tokens"]) == (200, 150 * 13 + 1)
