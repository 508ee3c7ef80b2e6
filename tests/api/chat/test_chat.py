"""Chat completions over fakes: bodies, reasoning, and the prompts that the model gets."""

from __future__ import annotations

import json

import pytest

from fastovms.params import SamplingDefaults
from tests.api.chat_models import MESSAGES, chat_model, prompt_of, tool
from tests.api.chats import BODY, THOUGHT, V1, V3, content_logprobs, join, make

__all__ = ["make"]


async def test_unary_body_of_openai(make):
    status, body = await make().post(V1, BODY)
    assert status == 200
    assert body == {
        "id": "chatcmpl-" + 32 * "0",
        "object": "chat.completion",
        "created": 1_750_000_000,
        "model": "fake",
        "system_fingerprint": "fp_test",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello!", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
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
    status, body = await make().post(path, BODY)
    assert status == 200
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
    assert "reasoning" not in message
    assert "".join(entry["token"] for entry in content_logprobs(choices)) == "Hello!"
    assert '"token_ids"' not in told


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "u:Hi;>"),
        ({"messages": "Hi"}, "u:Hi;>"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
                                                    {"type": "text", "text": "b"}]}]}, "u:a\nb;>"),
        ({"messages": [{"role": "user"}]}, "u:;>"),
        ({"messages": [{"role": "user", "content": None, "name": "Ann", "extra": [1]}]}, "u:;>"),
        ({"messages": [{"role": "system", "content": "S"}, *MESSAGES]}, "s:S;u:Hi;>"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": None, "refusal": "no"}]},
         "u:Hi;a:no;>"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "A", "reasoning": "why"}]},
         "u:Hi;a:A(why);>"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "A",
                                   "reasoning_content": "why"}]}, "u:Hi;a:A(why);>"),
        ({"messages": [{"role": "function", "name": "f", "content": "18"}]}, "t:18;>"),
        ({"messages": [{"role": "tool", "tool_call_id": "1", "content": "18"}]}, "t:18;>"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "c:x;>"),
        ({"add_generation_prompt": False}, "u:Hi;"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "u:Hi;"),
        ({"chat_template_kwargs": {"style": "terse"}}, "u:Hi;<style terse>>"),
        ({"enable_thinking": True}, "u:Hi;<thinking True>>"),
        ({"chat_template_kwargs": {"enable_thinking": False}, "enable_thinking": True},
         "u:Hi;<thinking False>>"),
        ({"reasoning_effort": "low"}, "u:Hi;<effort low><thinking True>>"),
        ({"reasoning_effort": "none"}, "u:Hi;<effort none><thinking False>>"),
        ({"reasoning_effort": "none", "enable_thinking": True},
         "u:Hi;<effort none><thinking True>>"),
        ({"documents": [{"title": "D", "text": "T"}]}, "u:Hi;<doc D>>"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "Well"}],
          "continue_final_message": True}, "u:Hi;a:Well"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "Well"}],
          "continue_final_message": True, "add_generation_prompt": False}, "u:Hi;a:Well"),
        ({"tools": [tool()]}, "<tool get_weather>u:Hi;>"),
        ({"tools": []}, "u:Hi;>"),
        ({"tools": [tool(), tool("add")], "tool_choice":
            {"type": "function", "function": {"name": "add"}}}, "<tool add>u:Hi;>"),
        ({"tools": [tool(), tool("add")], "tool_choice":
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools":
                [{"type": "function", "function": {"name": "add"}}]}}}, "<tool add>u:Hi;>"),
    ],
)  # fmt: skip
async def test_prompt(make, fields, prompt):
    api = make()
    status, body = await api.post(V1, {**BODY, **fields})
    assert status == 200, body
    assert prompt_of(api) == prompt


@pytest.mark.parametrize("streamed", [False, True])
async def test_echo(make, streamed):
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


async def test_role_of_the_answer(make):
    _, body = await make(chat=chat_model(response_role="critic")).post(V1, BODY)
    assert body["choices"][0]["message"]["role"] == "critic"
    messages = [{"role": "user", "content": "Once upon"}]
    fields = {"messages": messages, "continue_final_message": True}
    events = await make().stream(V1, {**BODY, **fields})
    assert join(events)[0]["role"] == "user"


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"add_generation_prompt": False}},
        {"messages": [{"role": "system", "content": "S"}], "add_generation_prompt": False},
        {"continue_final_message": True},
    ],
)
async def test_role_of_an_answer_without_a_generation_prompt(make, fields):
    """vLLM's is the last message's, OVMS knows none but the assistant's."""
    body = {**BODY, **fields}
    for path, role in ((V1, body["messages"][-1]["role"]), (V3, "assistant")):
        _, answer = await make().post(path, body)
        assert answer["choices"][0]["message"]["role"] == role
        assert join(await make().stream(path, body))[0]["role"] == role


async def test_templates_of_requests(make):
    body = {**BODY, "chat_template": "{{ messages[0].content }}!"}
    status, answer = await make().post(V1, body)
    assert (status, answer["error"]["param"]) == (400, "chat_template")
    chat = chat_model(trust_request_chat_template=True)
    api = make(chat=chat)
    assert (await api.post(V1, body))[0] == 200
    assert prompt_of(api) == "Hi!"
    status, answer = await api.post(V1, {**body, "chat_template": "{% if %}"})
    assert (status, answer["error"]["param"]) == (400, "chat_template")


async def test_the_operators_variables_of_the_template(make):
    chat = chat_model(default_chat_template_kwargs={"style": "terse", "enable_thinking": False})
    api = make(chat=chat)
    await api.post(V1, BODY)
    await api.post(
        V1, {**BODY, "chat_template_kwargs": {"style": "long"}, "reasoning_effort": "low"}
    )
    assert prompt_of(api, 0) == "u:Hi;<thinking False><style terse>>"
    assert prompt_of(api, 1) == "u:Hi;<effort low><thinking True><style long>>"


async def test_a_refusal_of_the_template_is_told(make):
    for path in (V1, V3):
        status, body = await make().post(path, {**BODY, "messages": [{"role": "bad"}]})
        message = body["error"]["message"] if path == V1 else body["error"]
        assert (status, "no such role: bad" in message) == (400, True)


async def test_a_model_without_a_template_still_completes(make_api):
    api = make_api("x")
    for path in (V1, V3):
        status, body = await api.post(path, BODY)
        message = body["error"]["message"] if path == V1 else body["error"]
        assert (status, "no chat template" in message) == (400, True)
    assert (await api.post("/v1/completions", {"prompt": "a"}))[0] == 200


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


async def test_best_of(make):
    api = make(lambda request, index: b"acbd"[index : index + 1] * 2)
    _, answer = await api.post(V1, {**BODY, "n": 2, "best_of": 4})
    assert len(answer["choices"]) == 2
    assert answer["choices"][0]["logprobs"] is None
    assert api.backend.submitted[0].params.n == 4


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
async def test_max_tokens(make, path, fields, expected):
    api = make()
    assert (await api.post(path, {**BODY, **fields}))[0] == 200
    assert api.backend.submitted[0].params.max_tokens == expected
    api = make(defaults=SamplingDefaults(max_new_tokens=3))
    await api.post(path, {**BODY, **fields})
    assert api.backend.submitted[0].params.max_tokens == (expected or 3)


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


async def test_a_chat_longer_than_the_context(make):
    for length in (2001, 100_000):
        body = {**BODY, "messages": [{"role": "user", "content": "x" * length}]}
        status, answer = await make().post(V1, body)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert answer["error"]["param"] == "messages"
    body = {**BODY, "truncate_prompt_tokens": 3}
    api = make()
    assert (await api.post(V1, body))[0] == 200
    assert prompt_of(api) == "i;>"
