"""Tests of `fastovms/api/chat.py`."""

from __future__ import annotations

import json
import logging

import pytest

from fastovms.params import SamplingDefaults
from tests.api.chat_models import (
    MESSAGES,
    PARAMETERS,
    call_text,
    chat_model,
    custom,
    grammar_format,
    prompt_of,
    tool,
)
from tests.api.chats import BODY, THOUGHT, V1, V3, content_logprobs, join, make
from tests.fakes import FakeStream

# Calls of custom tools, and requests with `functions`, with fakes.


__all__ = ["make"]

TEXT = 'print("é")\n'
WRITTEN = call_text("write", json.dumps({"input": TEXT}))
FUNCTIONS = [{"name": "get_weather", "parameters": PARAMETERS}, {"name": "add"}]

NULLS = {
    **dict.fromkeys(("refusal", "audio", "reasoning", "reasoning_content")),
    "annotations": [],
}


def deltas(events: list) -> list[dict]:
    return [event["choices"][0]["delta"] for event in events if event != "[DONE]"]


@pytest.mark.parametrize("path", [V1, V3])
async def test_custom_tool_call_has_its_input_as_text(make, path):
    api = make(WRITTEN + call_text())
    body = {**BODY, "tools": [custom(), tool()]}
    _, answer = await api.post(path, body)
    choice = answer["choices"][0]
    first, second = choice["message"]["tool_calls"]
    assert first == {
        "id": first["id"], "type": "custom", "custom": {"name": "write", "input": TEXT},
    }  # fmt: skip
    assert second["function"] == {"name": "get_weather", "arguments": '{"city":"Paris"}'}
    assert choice["finish_reason"] == "tool_calls"
    events = await api.stream(path, body)
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    [begin], *others = [delta["tool_calls"] for delta in deltas(events) if "tool_calls" in delta]
    assert begin == {
        "id": begin["id"], "type": "custom", "index": 0, "custom": {"name": "write", "input": ""},
    }  # fmt: skip
    told = [call["custom"]["input"] for [call] in others if call["index"] == 0]
    assert "".join(told) == TEXT
    assert len(told) > 5, "the text is told as it is written"


async def test_custom_call_of_the_history_is_rendered(make):
    api = make()
    call = {"id": "1", "type": "custom", "custom": {"name": "write", "input": "a\n"}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    assert (await api.post(V1, {**BODY, "messages": messages, "tools": [custom()]}))[0] == 200
    shown = prompt_of(api).replace('"', "'")
    assert "{write {'input': 'a\\n'}}" in shown.replace("\\\\", "\\")
    assert shown.endswith("t:done;>")


@pytest.mark.parametrize("choice", [None, {"type": "custom", "custom": {"name": "write"}}])
async def test_grammar_of_a_custom_tool_is_enforced(make, choice):
    api = make(WRITTEN)
    tools = [custom(format=grammar_format("[a-z]{3}", "regex"))]
    assert (await api.post(V1, {**BODY, "tools": tools, "tool_choice": choice}))[0] == 200
    assert '"pattern": "^(?:[a-z]{3})$"' in repr(api.backend.submitted[0].params.grammar.tree)


@pytest.mark.parametrize("streamed", [False, True])
async def test_grammar_that_cannot_be_enforced_warns(make, streamed, caplog):
    tools = [custom(format=grammar_format('start: "(" start ")" | "x"'))]
    body = {**BODY, "tools": tools, "stream": streamed}
    stream = FakeStream()
    with caplog.at_level(logging.WARNING):
        response = await make().call("POST", V1, body, stream)
    headers = dict((stream if streamed else response).headers)
    assert "tools[0].custom.format.grammar.definition is shown" in headers["Warning"]
    assert "tools[0].custom.format.grammar.definition is shown" in caplog.text


@pytest.mark.parametrize(
    ("choice", "content", "reason"),
    [(None, "Well.", "function_call"), ({"name": "get_weather"}, None, "stop")],
)
async def test_legacy_functions_return_the_first_call_only(make, choice, content, reason):
    api = make("Well." + call_text() + call_text("add"))
    body = {**BODY, "functions": FUNCTIONS, "function_call": choice}
    _, answer = await api.post(V1, body)
    [found] = answer["choices"]
    assert found["message"] == {
        "role": "assistant",
        "content": content,
        **NULLS,
        "function_call": {"name": "get_weather", "arguments": '{"city":"Paris"}'},
    }
    assert found["finish_reason"] == reason
    events = await api.stream(V1, body)
    assert events[-2]["choices"][0]["finish_reason"] == reason
    told = deltas(events)
    assert told[0] == {"role": "assistant", "content": None}
    begin, *others = [delta["function_call"] for delta in told if "function_call" in delta]
    assert begin == {"name": "get_weather", "arguments": ""}
    assert [set(delta) for delta in others] == [{"arguments"}] * len(others)
    assert "".join(delta["arguments"] for delta in others) == '{"city":"Paris"}'


async def test_legacy_functions_without_a_call_return_plain_text(make):
    for choice in ("auto", "none"):
        body = {**BODY, "functions": FUNCTIONS, "function_call": choice}
        _, answer = await make("Hello!").post(V1, body)
        [found] = answer["choices"]
        message = {"role": "assistant", "content": "Hello!", **NULLS}
        assert found["message"] == message
        assert found["finish_reason"] == "stop"


async def test_legacy_functions_of_the_history_are_rendered(make):
    api = make()
    called = {"name": "add", "arguments": '{"a": 1}'}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "function_call": called},
        {"role": "function", "name": "add", "content": "2"},
    ]
    body = {**BODY, "messages": messages, "functions": FUNCTIONS}
    assert (await api.post(V1, body))[0] == 200
    shown = prompt_of(api).replace('"', "'")
    assert shown == "<tool get_weather><tool add>u:Hi;a:{add {'a': 1}};t:2;>"


# Bodies and chunks of chats, in both dialects.


async def test_unary_chat_has_the_members_of_openai(make):
    body = await make().answer(V1, BODY)
    assert body == {
        "id": "chatcmpl-" + 32 * "0",
        "object": "chat.completion",
        "created": 1_750_000_000,
        "model": "fake",
        "system_fingerprint": "fp_test",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello!",
                    "refusal": None,
                    "annotations": [],
                    "audio": None,
                    "reasoning_content": None,
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "service_tier": "default",
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "kv_transfer_params": None,
        "usage": {
            "prompt_tokens": 6,
            "completion_tokens": 7,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


@pytest.mark.parametrize("path", [V3, "/v3/v1/chat/completions"])
async def test_unary_body_of_ovms(make, path):
    body = await make().answer(path, BODY)
    assert set(body) == {"object", "created", "model", "choices", "usage"}
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello!", "tool_calls": []},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


# Bodies and chunks of chats, in both dialects.


async def test_streamed_chat_has_the_chunks_of_openai(make):
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


@pytest.mark.parametrize("fields", [{}, {"use_beam_search": True, "n": 2}])
async def test_step_of_many_tokens_is_one_delta_a_piece(make, fields):
    text = THOUGHT + call_text()
    events = await make(text, tokens_per_step=1000).stream(
        V1, {**BODY, "tools": [tool()], **fields}
    )
    deltas = [e["choices"][0]["delta"] for e in events[:-1] if e["choices"][0]["index"] == 0]
    assert [list(delta) for delta in deltas] == [
        ["role", "content"], ["reasoning_content", "reasoning"], ["content"], ["tool_calls"],
        ["tool_calls"], [],
    ]  # fmt: skip


# The parameters of a chat's body.


@pytest.mark.parametrize("streamed", [False, True])
async def test_echo_returns_the_continued_message_before_the_answer(make, streamed):
    cases = (
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "Well, "}],
          "continue_final_message": True, "add_generation_prompt": False}, "Well, Hello!"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "Well, "}]}, "Well, Hello!"),
        ({}, "Hello!"),
    )  # fmt: skip
    for fields, content in cases:
        body = {**BODY, **fields, "echo": True, "n": 2}
        if streamed:
            found = [choice["content"] for choice in join(await make().stream(V1, body)).values()]
        else:
            _, answer = await make().post(V1, body)
            found = [choice["message"]["content"] for choice in answer["choices"]]
        assert found == [content, content]


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"add_generation_prompt": False}},
        {"messages": [{"role": "system", "content": "S"}], "add_generation_prompt": False},
        {"continue_final_message": True},
    ],
)
async def test_answer_without_a_generation_prompt_has_the_last_role(make, fields):
    """vLLM returns the last message's role, OVMS always "assistant"."""
    body = {**BODY, **fields}
    for path, role in ((V1, body["messages"][-1]["role"]), (V3, "assistant")):
        _, answer = await make().post(path, body)
        assert answer["choices"][0]["message"]["role"] == role
        assert join(await make().stream(path, body))[0]["role"] == role
    critic = make(chat=chat_model(response_role="critic"))
    assert (await critic.post(V1, BODY))[1]["choices"][0]["message"]["role"] == "critic"


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        (V1, {}, None),
        (V3, {}, None),
        (V1, {"max_tokens": 7}, 7),
        (V1, {"max_tokens": 7, "max_completion_tokens": 5}, 5),
        (V1, {"max_completion_tokens": 5}, 5),
        (V1, {"max_tokens": 10_000}, 1994),
        (V3, {"max_completion_tokens": 5, "max_tokens": 7}, 5),
    ],
)
async def test_max_tokens_falls_back_to_the_default_and_fits_the_context(
    make, path, fields, expected
):
    api = make()
    assert (await api.post(path, {**BODY, **fields}))[0] == 200
    assert api.backend.submitted[0].params.max_tokens == expected
    api = make(defaults=SamplingDefaults(max_new_tokens=3))
    await api.post(path, {**BODY, **fields})
    assert api.backend.submitted[0].params.max_tokens == (expected or 3)


# Chat completions with fakes: bodies, reasoning, and the model's prompts.


@pytest.mark.parametrize("path", [V1, V3])
@pytest.mark.parametrize("tokens_per_step", [1, 3, 1000])
async def test_reasoning_is_separated_from_content_and_counted(make, path, tokens_per_step):
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


async def test_reasoning_opened_by_the_template_is_separated(make):
    kwargs = {"chat_template_kwargs": {"opened": True}}
    _, body = await make("hm</think>Hello!").post(V1, {**BODY, **kwargs})
    message = body["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("hm", "Hello!")


@pytest.mark.parametrize("streamed", [False, True])
async def test_reasoning_is_left_out_if_not_included(make, streamed):
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


async def test_chat_logprobs_have_bytes_and_requested_alternatives(make):
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


async def test_prompt_logprobs_and_text_are_returned_if_asked(make):
    body = {**BODY, "prompt_logprobs": 1, "return_prompt_text": True}
    _, answer = await make().post(V1, body)
    assert answer["prompt_text"] == "u:Hi;>"
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == 6
    events = await make().stream(V1, {**BODY, "return_prompt_text": True})
    assert events[0]["prompt_text"] == "u:Hi;>"
