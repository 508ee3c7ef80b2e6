"""The endpoints of messages, over fakes: whole and streamed."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from fastovms.api.conversation.sealed_text import unseal
from fastovms.config.model_config import ModelLimits
from fastovms.errors import BackendUnavailable, Overloaded
from tests.api.chat_models import call_text, prompt_of
from tests.api.messages.asking import BODY, PATH, THINKS, THOUGHT, TOOL, USER, ask, make

__all__ = ["make"]

both = pytest.mark.parametrize("streamed", [False, True])


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "citations": None}


@both
async def test_a_text(make, streamed):
    message = await ask(make(), streamed)
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [text("Hello!")],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": {
            "input_tokens": 22,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 7,
            "output_tokens_details": {"thinking_tokens": 0},
            "server_tool_use": None,
            "cache_creation": None,
            "inference_geo": None,
            "service_tier": "standard",
        },
    }


@both
@pytest.mark.parametrize(
    ("fields", "content"),
    [
        (THINKS, ["hm, hm", "Hello!"]),
        ({"thinking": {"type": "adaptive"}}, ["hm, hm", "Hello!"]),
        ({"chat_template_kwargs": {"enable_thinking": True}}, ["hm, hm", "Hello!"]),
        ({"thinking": {"type": "disabled"}}, ["Hello!"]),
        ({}, ["Hello!"]),
    ],
)
async def test_thoughts(make, streamed, fields, content):
    message = await ask(make(THOUGHT), streamed, **fields)
    blocks = message["content"]
    assert [block.get("thinking") or block["text"].strip() for block in blocks] == content
    if len(blocks) == 2:
        assert blocks[0]["signature"]


@both
async def test_thoughts_that_are_not_shown(make, streamed):
    omitted = {"thinking": {**THINKS["thinking"], "display": "omitted"}}
    api = make(THOUGHT)
    first, _ = (await ask(api, streamed, **omitted))["content"]
    assert first["thinking"] == ""
    assert unseal(first["signature"]).strip() == "hm, hm"
    history = [USER, {"role": "assistant", "content": [first]}, USER]
    await ask(api, streamed, messages=history)
    assert "(hm, hm)" in prompt_of(api).replace("\n", "")


@both
async def test_calls(make, streamed):
    script = f"Wait.{call_text()}{call_text(arguments='{}')}"
    message = await ask(make(script), streamed, tools=[TOOL])
    first, *calls = message["content"]
    assert first == text("Wait.")
    assert [call["input"] for call in calls] == [{"city": "Paris"}, {}]
    assert len({call.pop("id") for call in calls}) == 2
    assert {(call["type"], call["name"]) for call in calls} == {("tool_use", "get_weather")}
    assert message["stop_reason"] == "tool_use"


@both
async def test_one_call_at_a_time(make, streamed):
    choice = {"type": "any", "disable_parallel_tool_use": True}
    script = f"Wait.{call_text()}{call_text()}"
    message = await ask(make(script), streamed, tools=[TOOL], tool_choice=choice)
    assert [block["type"] for block in message["content"]] == ["tool_use"]


@both
async def test_a_call_that_is_cut(make, streamed):
    message = await ask(make(call_text()), streamed, tools=[TOOL], max_tokens=55)
    assert message["stop_reason"] == "max_tokens"
    assert [block["input"] for block in message["content"]] == ['{"city' if streamed else {}]


@both
async def test_stop_sequences(make, streamed):
    message = await ask(make("one, two"), streamed, stop_sequences=["three", ", "])
    assert message["content"] == [text("one")]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", ", ")


@both
async def test_max_tokens(make, streamed):
    message = await ask(make("one, two"), streamed, max_tokens=3)
    assert (message["content"], message["stop_reason"]) == ([text("one")], "max_tokens")


@both
async def test_the_context_is_full(make, streamed):
    message = await ask(make("a" * 3000), streamed, max_tokens=32_000)
    assert message["stop_reason"] == "model_context_window_exceeded"
    assert message["usage"]["output_tokens"] == 1978


@both
async def test_the_operators_limit_is_no_full_context(make, streamed):
    api = make("a" * 30, limits=ModelLimits(max_tokens_limit=10))
    message = await ask(api, streamed, max_tokens=32_000)
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 10)


async def test_no_tokens_fill_the_cache(make):
    api = make("Hello!")
    message = await ask(api, False, max_tokens=0, tools=[TOOL])
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    assert message["usage"]["output_tokens"] == 0
    [submitted] = api.backend.submitted
    assert submitted.params.max_tokens == 1
    prompt = prompt_of(api)
    await ask(api, False, tools=[TOOL])
    assert prompt_of(api) == prompt


@both
async def test_nothing_is_said(make, streamed):
    message = await ask(make(""), streamed)
    assert (message["content"], message["stop_reason"]) == ([], "end_turn")


async def test_count_tokens(make):
    api = make()
    status, counted = await api.post(f"{PATH}/count_tokens", {"messages": [USER], "tools": [TOOL]})
    assert (status, api.backend.submitted) == (200, [])
    message = await ask(api, False, tools=[TOOL])
    assert counted == {"input_tokens": message["usage"]["input_tokens"]}


async def test_warnings(make):
    api = make()
    fields = {
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    }
    response = await api.call("POST", PATH, {**BODY, **fields})
    [(name, warning)] = response.headers
    assert name == "Warning"
    assert "tools[0] of type web_search_20250305, context_management.edits[0]" in warning


@pytest.mark.parametrize(
    ("fields", "status", "kind", "words"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens is required"),
        ({"max_tokens": -1}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 0, "stream": True}, 400, "invalid_request_error", "stream cannot be used"),
        ({"messages": None}, 400, "invalid_request_error", "messages is required"),
        ({"messages": 5}, 400, "invalid_request_error", "messages must be an array"),
        ({"model": "other"}, 404, "not_found_error", "`other`"),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences[0]"),
        ({"stop_sequences": "a"}, 400, "invalid_request_error", "stop_sequences"),
        ({"temperature": 3}, 400, "invalid_request_error", "temperature"),
        ({"top_k": 1.5}, 400, "invalid_request_error", "top_k"),
        ({"messages": [{"role": "user", "content": "a" * 3000}]}, 400, "invalid_request_error",
         "prompt is too long: This model's maximum context length is 2000 tokens, but the prompt "
         "has"),
    ],
)  # fmt: skip
async def test_errors(make, fields, status, kind, words):
    api = make()
    found, error = await api.post(PATH, {**BODY, **fields})
    assert (found, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert words in error["error"]["message"]
    assert set(error) == {"type", "error", "request_id"}
    assert api.backend.submitted == []


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (Overloaded("too many"), 429, "rate_limit_error"),
        (BackendUnavailable("draining"), 503, "overloaded_error"),
        (RuntimeError("a secret"), 500, "api_error"),
    ],
)
async def test_failures(make, failure, status, kind):
    api = make()

    def refuse(*_: object) -> None:
        raise failure

    api.backend.submit = refuse
    response = await api.call("POST", PATH, BODY)
    assert response.status == status
    error = orjson.loads(response.body)["error"]
    assert error["type"] == kind
    assert "secret" not in error["message"]
    if status in (429, 503):
        assert ("Retry-After", "1") in response.headers
