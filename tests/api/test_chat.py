"""Chat completions over fakes: bodies, streams and what the model is asked."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastovms.config import ApiConfig
from fastovms.params import GrammarKind, SamplingDefaults
from tests.api.chat_models import MESSAGES, call_text, chat_model, tool, tool_choice
from tests.fakes import FakeStream, model_info

V1 = "/v1/chat/completions"
V3 = "/v3/chat/completions"
BODY = {"model": "fake", "messages": MESSAGES}
THOUGHT = "<think>\nhm, hm\n</think>\n\nHello!"


@pytest.fixture
def make(make_api):
    def make_chat(script="Hello!", *, chat=None, defaults=None, **options):
        model = model_info(max_model_len=2000, defaults=defaults)
        return make_api(script, model=model, chat=chat or chat_model(), **options)

    return make_chat


def prompt_of(api, position: int = -1) -> str:
    return bytes(api.backend.submitted[position].prompt_token_ids).decode()


def join(events: list) -> dict[int, dict[str, Any]]:
    """Each choice of a stream as the message that the deltas add up to."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"] if event != "[DONE]" else ():
            joined = choices.setdefault(choice["index"], {"calls": []})
            assert "finish_reason" not in joined, "nothing follows the end"
            for key, value in choice["delta"].items():
                if key == "tool_calls":
                    [call] = value
                    if call["index"] == len(joined["calls"]):
                        assert call["id"]
                        assert call["type"] == "function"
                        joined["calls"].append([call["function"]["name"], ""])
                    joined["calls"][call["index"]][1] += call["function"]["arguments"]
                elif value is not None:
                    joined[key] = joined.get(key, "") + value
            if choice["finish_reason"] is not None:
                joined["finish_reason"] = choice["finish_reason"]
    return choices


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


async def test_stream_of_openai(make):
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


async def test_running_usage(make):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await make("hi").stream(V1, {**BODY, "stream_options": options})
    assert [event["usage"] and event["usage"]["completion_tokens"] for event in events[:-1]] == [
        None, 1, 2, 3, 3,
    ]  # fmt: skip


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
    else:
        _, answer = await api.post(V1, body)
        message, told = answer["choices"][0]["message"], json.dumps(answer)
    assert message["content"] == "Hello!"
    assert "reasoning" not in message
    assert '"bytes"' not in told
    assert '"token_ids"' not in told


@pytest.mark.parametrize("tokens_per_step", [1, 2, 7, 1000])
async def test_calls(make, tokens_per_step):
    text = "Let me see." + call_text() + "\n" + call_text("add", r'{"a":{"b":[1,"\"é\n"]}}')
    api = make(text, tokens_per_step=tokens_per_step)
    tools = {"tools": [tool(), tool("add", parameters=None)]}
    _, body = await api.post(V1, {**BODY, **tools})
    choice = body["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    calls = choice["message"]["tool_calls"]
    assert [list(call) for call in calls] == [["id", "type", "function"]] * 2
    assert len({call["id"] for call in calls}) == 2
    functions = [call["function"] for call in calls]
    assert functions[0] == {"name": "get_weather", "arguments": '{"city":"Paris"}'}
    assert json.loads(functions[1]["arguments"]) == {"a": {"b": [1, '"é\n']}}
    for path in (V1, V3):
        joined = join(await api.stream(path, {**BODY, **tools}))[0]
        assert joined["calls"] == [[f["name"], f["arguments"]] for f in functions]
        assert joined["finish_reason"] == "tool_calls"
        assert joined["content"] == "Let me see."


async def test_a_call_is_told_as_it_is_made(make):
    events = await make(call_text()).stream(V1, {**BODY, "tools": [tool()]})
    deltas = [event["choices"][0]["delta"] for event in events[1:-1]]
    first, *others, last = deltas
    [call] = first["tool_calls"]
    assert call == {
        "index": 0,
        "id": call["id"],
        "type": "function",
        "function": {"name": "get_weather", "arguments": ""},
    }
    for delta in others:
        [call] = delta["tool_calls"]
        assert set(call) == {"index", "function"}
    pieces = [delta["tool_calls"][0]["function"]["arguments"] for delta in others]
    assert pieces == list('{"city":"Paris"}')
    assert last == {}


@pytest.mark.parametrize(
    ("path", "content"), [(V1, None), (V3, "")], ids=["null", "empty"]
)  # fmt: skip
async def test_content_beside_calls_alone(make, path, content):
    _, body = await make(call_text()).post(path, {**BODY, "tools": [tool()]})
    assert body["choices"][0]["message"]["content"] == content


@pytest.mark.parametrize("choice", [None, "none"])
async def test_without_tools_markup_is_content(make, choice):
    body = {**BODY, "tools": [tool()], "tool_choice": choice} if choice else BODY
    api = make(call_text())
    _, answer = await api.post(V1, body)
    assert answer["choices"][0]["message"]["content"] == call_text()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "<tool" not in prompt_of(api)


async def test_of_parallel_calls_only_the_first_is_kept(make):
    api = make(call_text() + call_text("other"))
    body = {**BODY, "tools": [tool()], "parallel_tool_calls": False}
    _, answer = await api.post(V1, body)
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
    assert [name for name, _ in join(await api.stream(V1, body))[0]["calls"]] == ["get_weather"]


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


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"name": "f", "arguments": '{"a": 1}'}, "{f {'a': 1}}"),
        ({"name": "f", "arguments": {"a": 1}}, "{f {'a': 1}}"),
        ({"name": "f", "arguments": ""}, "{f {}}"),
        ({"name": "f", "arguments": None}, "{f {}}"),
        ({"name": "f"}, "{f {}}"),
    ],
)
async def test_calls_in_the_history(make, given, shown):
    for answer in (
        {"tool_calls": [{"id": "1", "type": "function", "function": given}]},
        {"tool_calls": [{"function": given}]},
        {"function_call": given},
    ):
        api = make()
        messages = [*MESSAGES, {"role": "assistant", **answer}]
        status, body = await api.post(V1, {**BODY, "messages": messages})
        assert status == 200, body
        assert prompt_of(api).replace('"', "'") == f"u:Hi;a:{shown};>"


async def test_tools_beside_their_type_for_ovms(make):
    api = make(call_text())
    flat = {"type": "function", **tool()["function"]}
    choice = {"type": "function", "name": "get_weather"}
    status, body = await api.post(V3, {**BODY, "tools": [flat], "tool_choice": choice})
    assert status == 200, body
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert prompt_of(api) == "<tool get_weather>u:Hi;>"
    status, body = await api.post(V1, {**BODY, "tools": [flat]})
    assert (status, body["error"]["param"]) == (400, "tools[0].function")


async def test_a_choice_that_no_tool_fits_for_ovms(make):
    for fields in (
        {"tool_choice": "required"},
        {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "other"}}},
    ):
        status, body = await make(call_text()).post(V3, {**BODY, **fields})
        assert status == 200
        assert body["choices"][0]["message"]["tool_calls"] == []
        status, body = await make().post(V1, {**BODY, **fields})
        assert (status, body["error"]["param"]) == (400, "tool_choice")


async def test_a_text_with_special_tokens_is_parsed_in_openais_dialect_alone(make):
    body = {**BODY, "tools": [tool()], "skip_special_tokens": False}
    _, answer = await make(call_text()).post(V1, body)
    assert answer["choices"][0]["message"]["tool_calls"]
    _, answer = await make(call_text()).post(V3, body)
    assert answer["choices"][0]["message"]["content"] == call_text()


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


@pytest.mark.parametrize("tokens_per_step", [1, 3, 1000])
@pytest.mark.parametrize("text", ["Hello!", THOUGHT, "x" + call_text() + call_text(), "<tool_"])
async def test_a_stream_tells_of_the_same_tokens(make, tokens_per_step, text):
    api = make(text, tokens_per_step=tokens_per_step)
    body = {**BODY, "logprobs": True, "return_token_ids": True, "tools": [tool()]}
    _, answer = await api.post(V1, body)
    choice = answer["choices"][0]
    assert bytes(choice["token_ids"]).decode() == text
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == text
    assert bytes(answer["prompt_token_ids"]).decode() == "<tool get_weather>u:Hi;>"
    events = await api.stream(V1, body)
    assert events[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    assert not any("prompt_token_ids" in event for event in events[1:-1])
    choices = [event["choices"][0] for event in events[:-1]]
    entries = [e for c in choices if c["logprobs"] for e in c["logprobs"]["content"]]
    assert entries == choice["logprobs"]["content"]
    assert [i for c in choices for i in c.get("token_ids", ())] == choice["token_ids"]


async def test_prompt_log_probabilities(make):
    body = {**BODY, "prompt_logprobs": 1, "return_prompt_text": True}
    _, answer = await make().post(V1, body)
    assert answer["prompt_text"] == "u:Hi;>"
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == 6
    events = await make().stream(V1, {**BODY, "return_prompt_text": True})
    assert events[0]["prompt_text"] == "u:Hi;>"


@pytest.mark.parametrize("tokens_per_step", [1, 2, 100])
async def test_several_samples(make, tokens_per_step):
    texts = ["first", call_text(), THOUGHT]
    api = make(lambda request, index: texts[index].encode(), tokens_per_step=tokens_per_step)
    body = {**BODY, "n": 3, "tools": [tool()], "stream_options": {"include_usage": True}}
    events = await api.stream(V1, body)
    assert [event["choices"][0]["delta"].get("role") for event in events[:3]] == ["assistant"] * 3
    assert [event["choices"][0]["index"] for event in events[:3]] == [0, 1, 2]
    joined = join(events)
    assert [joined[index]["finish_reason"] for index in range(3)] == ["stop", "tool_calls", "stop"]
    assert joined[2]["reasoning"] == "hm, hm"
    _, answer = await api.post(V1, {**body, "stream_options": None})
    assert [choice["finish_reason"] for choice in answer["choices"]] == [
        "stop", "tool_calls", "stop",
    ]  # fmt: skip
    assert events[-2]["usage"] == answer["usage"]


@pytest.mark.parametrize("fields", [{}, {"use_beam_search": True, "n": 2}])
async def test_a_step_of_many_tokens_is_one_delta(make, fields):
    text = THOUGHT + call_text()
    events = await make(text, tokens_per_step=1000).stream(
        V1, {**BODY, "tools": [tool()], **fields}
    )
    deltas = [e["choices"][0]["delta"] for e in events[:-1] if e["choices"][0]["index"] == 0]
    assert [list(delta) for delta in deltas] == [
        ["role", "content"], ["reasoning_content", "reasoning"], ["content"], ["tool_calls"],
        ["tool_calls"], [],
    ]  # fmt: skip


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


async def test_a_call_that_is_cut(make):
    api = make(call_text())
    body = {**BODY, "tools": [tool()], "max_tokens": 50}
    _, answer = await api.post(V1, body)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length"
    joined = join(await api.stream(V1, body))[0]
    assert joined["finish_reason"] == "length"
    assert joined["calls"] == [
        [call["function"]["name"], call["function"]["arguments"]]
        for call in choice["message"]["tool_calls"]
    ]


@pytest.mark.parametrize("choice", ["required", tool_choice("get_weather")])
@pytest.mark.parametrize("max_tokens", [5, 20, 50])
async def test_of_a_required_call_that_is_cut_nothing_is_told(make, choice, max_tokens):
    body = {**BODY, "tools": [tool()], "tool_choice": choice, "max_tokens": max_tokens}
    _, answer = await make(call_text()).post(V1, body)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"] == {"role": "assistant", "content": "", "refusal": None}


@pytest.mark.parametrize(
    ("path", "choice", "content", "reason"),
    [
        (V1, "required", None, "tool_calls"),
        (V1, tool_choice("get_weather"), "", "stop"),
        (V3, "required", "", "tool_calls"),
        (V3, tool_choice("get_weather"), "", "tool_calls"),
    ],
)
async def test_required_calls(make, path, choice, content, reason):
    body = {**BODY, "tools": [tool(), tool("add")], "tool_choice": choice}
    api = make(call_text())
    _, answer = await api.post(path, body)
    [found] = answer["choices"]
    assert (found["message"]["content"], found["finish_reason"]) == (content, reason)
    assert len(found["message"]["tool_calls"]) == 1
    joined = join(await api.stream(path, body))[0]
    assert (joined["finish_reason"], joined["calls"][0][0]) == (reason, "get_weather")
    assert api.backend.submitted[0].params.grammar.kind is GrammarKind.TAGGED_RULES


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


FRAGMENTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<", "text", " ", "\n", "é", '"', "}",
    '{"name": "get_weather", "arguments": {"city":"Paris"}}', '{"name": "add", "arguments": {"a":',
]  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    text=st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "max_tokens": st.integers(1, 100),
            "stop": st.sampled_from(["text", "}"]),
            "include_reasoning": st.just(False),
            "parallel_tool_calls": st.just(False),
            "chat_template_kwargs": st.just({"opened": True}),
        },
    ),
    tokens_per_step=st.sampled_from([1, 2, 5, 1000]),
    reads=st.booleans(),
)
async def test_a_stream_is_the_whole_answer(make_api, text, fields, tokens_per_step, reads):
    """Whatever the model writes, in steps of any size, and whether the client reads or not."""
    api = make_api(
        text or "x",
        model=model_info(max_model_len=2000),
        chat=chat_model(),
        tokens_per_step=tokens_per_step,
    )
    body = {**BODY, **fields, "tools": [tool(), tool("add")]}
    _, answer = await api.post(V1, body)
    message = answer["choices"][0]["message"]
    stream = FakeStream()
    stream.writable = reads
    options = {"stream": True, "stream_options": {"include_usage": True}}
    await api.call("POST", V1, {**body, **options}, stream)
    joined = join(stream.events)[0]
    assert joined.get("content", "") == (message["content"] or "")
    assert joined.get("reasoning") == message.get("reasoning")
    assert joined["finish_reason"] == answer["choices"][0]["finish_reason"]
    assert joined["calls"] == [
        [call["function"]["name"], call["function"]["arguments"]]
        for call in message.get("tool_calls", ())
    ]
    assert stream.events[-2]["usage"] == answer["usage"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_cancellation_frees_the_backend(make, streamed):
    api = make("hello")
    api.backend.paused = True
    task = asyncio.create_task(api.call("POST", V1, {**BODY, "stream": streamed}, FakeStream()))
    await api.backend.received.wait()
    assert api.backend.stats().num_running == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert api.backend.stats().num_running == 0


@pytest.mark.parametrize("path", [V1, V3])
async def test_failure_in_a_stream_is_its_last_event(make, path):
    api = make("hello")
    api.backend.fail_after = 2
    events = await api.stream(path, BODY)
    assert join(events[:-2])[0]["content"] == "he"
    error = events[-2]["error"]
    assert (error["message"] if path == V1 else error) == "out of order"
    assert events[-1] == "[DONE]"


async def test_deltas_merge_while_the_client_does_not_read(make):
    text = THOUGHT + call_text() + call_text("add", '{"a":1}')
    api = make(text)
    stream = FakeStream()
    stream.writable = False
    body = {**BODY, "stream": True, "n": 2, "tools": [tool()]}
    assert await api.call("POST", V1, body, stream) is None
    assert len(stream.writes) == 1
    joined = join(stream.events)
    assert joined[0] == joined[1]
    assert joined[0]["calls"] == [["get_weather", '{"city":"Paris"}'], ["add", '{"a":1}']]
    deltas = [event["choices"][0]["delta"] for event in stream.events[:-1]]
    assert len(deltas) == 2 * (1 + 1 + 1 + 2 * 2 + 1), "each text is one delta"


async def test_a_client_that_never_reads_is_cut_off(make):
    config = ApiConfig(max_pending_chars=300)
    for text in ("x" * 500, THOUGHT * 50, call_text(arguments='{"a":"' + "x" * 500 + '"}')):
        api = make(text, config=config)
        stream = FakeStream()
        stream.writable = False
        body = {**BODY, "stream": True, "tools": [tool()]}
        assert await api.call("POST", V1, body, stream) is None
        assert stream.aborted
        assert api.backend.stats().num_running == 0


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
