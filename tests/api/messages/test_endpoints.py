"""Tests of `fastovms/parts/messages/endpoints.py`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from fastovms.api.answer import Envelope, ShownPieces
from fastovms.api.chat_messages import unseal
from fastovms.api.dialect import ANTHROPIC
from fastovms.api.generate import TextGeneration, Usage
from fastovms.config import ModelLimits
from fastovms.errors import BackendUnavailable, Overloaded
from fastovms.params import GrammarKind
from fastovms.parts.messages.endpoints import (
    AnswerForm,
    MessageFrames,
)
from tests.api.chat_models import BROKEN, call_text, prompt_of
from tests.api.messages.asking import BODY, PATH, THINKS, THOUGHT, TOOL, USER, ask, make

# Parts of an answer become the content blocks of a message.


ENVELOPE = Envelope("msg_1", 0, "fake", "fp", ANTHROPIC)


# The events of a stream, block by block.


def test_failure_becomes_an_error_event_with_the_request_id() -> None:
    generation = cast(TextGeneration, SimpleNamespace(usage=Usage(5, 2, 4)))
    frames = MessageFrames(ENVELOPE, generation, AnswerForm(ShownPieces(), str, 2), "r-1")
    [name, data, *_] = frames.failure(BackendUnavailable("draining")).split(b"\n")
    assert name == b"event: error"
    assert orjson.loads(data.removeprefix(b"data: ")) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "draining"},
        "request_id": "r-1",
    }


# The prompt of a request, and how an answer continues it.


__all__ = ["make"]

SAID = {"role": "assistant", "content": "Well, "}


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "u:Hi;<thinking False>>"),
        ({"system": "S"}, "s:S;u:Hi;<thinking False>>"),
        (THINKS, "u:Hi;<thinking True>>"),
        ({"thinking": {"type": "disabled"}}, "u:Hi;<thinking False>>"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "u:Hi;<thinking True>>"),
        (
            {"output_config": {"effort": "high"}, "chat_template_kwargs": {"style": "s"}},
            "u:Hi;<effort high><thinking False><style s>>",
        ),
        ({"messages": [USER, SAID]}, "u:Hi;a:Well, "),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, "u:Hi;<thinking False>>"),
        ({"tools": [TOOL]}, "<tool get_weather>u:Hi;<thinking False>>"),
    ],
)
async def test_request_fields_are_rendered_into_the_prompt(make, fields, prompt):
    api = make()
    await ask(api, False, **fields)
    assert prompt_of(api) == prompt


async def test_tool_use_without_its_result_is_refused(make):
    use = {"type": "tool_use", "id": "t", "name": "get_weather", "input": {}}
    body = {**BODY, "messages": [USER, {"role": "assistant", "content": [use]}]}
    status, error = await make().post(PATH, body)
    assert status == 400
    assert "must follow the last message" in error["error"]["message"]


@pytest.mark.parametrize("name", ["output_config", "output_format"])
async def test_json_schema_format_becomes_a_grammar(make, name):
    schema = {"type": "json_schema", "schema": {"type": "object"}}
    api = make('{"a":1}')
    await ask(api, False, **{name: {"format": schema} if name == "output_config" else schema})
    grammar = api.backend.submitted[0].params.grammar
    assert grammar.kind is GrammarKind.JSON_SCHEMA
    assert grammar.param.startswith(name)


# The endpoints of messages with fakes, streamed and not streamed.


both = pytest.mark.parametrize("streamed", [False, True])


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "citations": None}


@both
async def test_text_answer_is_a_message_with_usage(make, streamed):
    api = make()
    api.backend.num_cached_tokens = 16
    message = await ask(api, streamed)
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
            "input_tokens": 6,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 16,
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
async def test_thinking_is_a_block_if_the_request_or_the_operator_wants_it(
    make, streamed, fields, content
):
    message = await ask(make(THOUGHT), streamed, **fields)
    blocks = message["content"]
    assert [block.get("thinking") or block["text"].strip() for block in blocks] == content
    if len(blocks) == 2:
        assert blocks[0]["signature"]


@both
async def test_omitted_thinking_is_sealed_and_read_again(make, streamed):
    omitted = {"thinking": {**THINKS["thinking"], "display": "omitted"}}
    api = make(THOUGHT)
    first, _ = (await ask(api, streamed, **omitted))["content"]
    assert first["thinking"] == ""
    assert unseal(first["signature"]).strip() == "hm, hm"
    history = [USER, {"role": "assistant", "content": [first]}, USER]
    await ask(api, streamed, messages=history)
    assert "(hm, hm)" in prompt_of(api).replace("\n", "")


@both
@pytest.mark.parametrize(
    ("script", "fields", "words", "reason", "sequence", "num_tokens"),
    [
        ("", {}, [], "end_turn", None, 1),
        ("one, two", {"max_tokens": 3}, ["one"], "max_tokens", None, 3),
        ("one, two", {"stop_sequences": ["three", ", "]}, ["one"], "stop_sequence", ", ", 5),
        (
            "a" * 3000,
            {"max_tokens": 32_000},
            ["a" * 1978],
            "model_context_window_exceeded",
            None,
            1978,
        ),
        *((text, {"tools": [TOOL]}, [text], "end_turn", None, len(text) + 1) for text in BROKEN),
    ],
)
async def test_stop_reason_names_the_end_of_the_text(
    make, streamed, script, fields, words, reason, sequence, num_tokens
):
    message = await ask(make(script), streamed, **fields)
    assert [(block["type"], block["text"]) for block in message["content"]] == [
        ("text", word) for word in words
    ]
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    assert message["usage"]["output_tokens"] == num_tokens


async def test_limit_of_the_operator_is_no_full_context(make):
    api = make("a" * 30, limits=ModelLimits(max_tokens_limit=10))
    message = await ask(api, False, max_tokens=32_000, temperature=0.5, top_p=0.9, top_k=-1)
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 10)
    params = api.backend.submitted[0].params
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.5, 0.9, 0, 10)


@both
async def test_tool_calls_follow_the_text_as_tool_use_blocks(make, streamed):
    script = f"Wait.{call_text()}{call_text(arguments='{}')}"
    message = await ask(make(script), streamed, tools=[TOOL])
    first, *calls = message["content"]
    assert first == text("Wait.")
    assert [call["input"] for call in calls] == [{"city": "Paris"}, {}]
    assert len({call["id"] for call in calls}) == 2
    assert {(call["type"], call["name"]) for call in calls} == {("tool_use", "get_weather")}
    assert message["stop_reason"] == "tool_use"


@both
async def test_forced_single_call_is_the_only_block(make, streamed):
    choice = {"type": "any", "disable_parallel_tool_use": True}
    script = f"Wait.{call_text()}{call_text()}"
    message = await ask(make(script), streamed, tools=[TOOL], tool_choice=choice)
    assert [block["type"] for block in message["content"]] == ["tool_use"]


@both
async def test_cut_call_has_the_input_so_far(make, streamed):
    message = await ask(make(call_text()), streamed, tools=[TOOL], max_tokens=55)
    assert message["stop_reason"] == "max_tokens"
    assert [block["input"] for block in message["content"]] == ['{"city' if streamed else {}]


async def test_max_tokens_of_zero_fills_the_cache(make):
    api = make("Hello!")
    message = await ask(api, False, max_tokens=0, tools=[TOOL])
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    assert message["usage"]["output_tokens"] == 0
    [submitted] = api.backend.submitted
    assert submitted.params.max_tokens == 1
    prompt = prompt_of(api)
    await ask(api, False, tools=[TOOL])
    assert prompt_of(api) == prompt


async def test_count_tokens_agrees_with_the_usage_of_a_message(make):
    api = make()
    status, counted = await api.post(f"{PATH}/count_tokens", {"messages": [USER], "tools": [TOOL]})
    assert (status, api.backend.submitted) == (200, [])
    message = await ask(api, False, tools=[TOOL])
    assert counted == {"input_tokens": message["usage"]["input_tokens"]}


async def test_ignored_tools_and_edits_are_named_in_a_warning_header(make):
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
async def test_invalid_request_is_refused_with_an_anthropic_error(
    make, fields, status, kind, words
):
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
async def test_failure_of_the_backend_has_its_status_and_type(make, failure, status, kind):
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
