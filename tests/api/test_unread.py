"""Tests of `fastovms/api/unread.py`: fields unknown to the server are named in a warning."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from fastovms.params import Task
from tests.api.chat_models import chat_model
from tests.api.encoder_api import served_encoder
from tests.fakes import FakeStream, model_info

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
CHATS = "/v1/chat/completions"
TEXTS = "/v1/completions"
TURNS = "/v1/responses"
CLAUDE = "/v1/messages"
BODIES: dict[str, dict[str, Any]] = {
    CHATS: CHAT,
    "/v3/chat/completions": CHAT,
    TEXTS: {"model": "fake", "prompt": "Hi", "max_tokens": 5},
    TURNS: {"model": "fake", "input": "Hi"},
    "/v3/responses": {"model": "fake", "input": "Hi"},
    CLAUDE: {**CHAT, "max_tokens": 5},
}


def user(content: Any, **members: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content, **members}]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_field_is_named(make_api, path, streamed, caplog):
    api = make_api("ok", chat=chat_model())
    body = {**BODIES[path], "mood": "good", "tone": [1], "nothing": None}
    for _ in range(2):
        stream = FakeStream()
        with caplog.at_level(logging.WARNING):
            response = await api.call("POST", path, {**body, "stream": streamed}, stream)
        headers = dict(stream.headers if response is None else response.headers)
        assert headers["Warning"] == '299 - "unknown, and ignored: mood, tone"'
    assert [r.getMessage() for r in caplog.records] == [
        "request req-1: unknown fields are ignored: mood, tone"
    ]


@pytest.mark.parametrize(
    ("path", "fields", "names"),
    [
        (CHATS, {"messages": user("a", mood=1)}, "messages[].mood"),
        (CHATS, {"messages": user([{"type": "text", "text": "a", "mood": 1}])},
         "messages[].content[].mood"),
        (CHATS, {"messages": [*user("a"), {"role": "assistant", "tool_calls": [{**CALL, "b": 1}],
                                           "audio": {"id": "x"}, "annotations": []},
                              {"role": "tool", "tool_call_id": "1", "content": "2"}]},
         "messages[].tool_calls[].b, messages[].audio"),
        (CHATS, {"tools": [{"type": "function", "function": {**FUNCTION, "mood": 1}}]},
         "tools[].function.mood"),
        (CHATS, {"prompt_cache_options": {"mode": "implicit", "prewarm": True}},
         "prompt_cache_options.prewarm"),
        (CHATS, {"repetition_detection": {"max_pattern_size": 0, "mode": "x"}},
         "repetition_detection.mode"),
        (TURNS, {"input": user("a", mood=1)}, "input[].mood"),
        (TURNS, {"input": [{"type": "message", "role": "assistant", "phase": "commentary",
                            "content": [{"type": "output_text", "text": "a", "annotations": [],
                                         "logprobs": [], "mood": 1}]}]},
         "input[].content[].mood"),
        (TURNS, {"input": [{"type": "function_call", "call_id": "1", "name": "f",
                            "arguments": "{}", "caller": {"type": "direct"}},
                           {"type": "function_call_output", "call_id": "1", "output": "2"}]},
         "input[].caller"),
        (TURNS, {"tools": [{"type": "function", **FUNCTION, "defer_loading": True}]},
         "tools[].defer_loading"),
        (TURNS, {"text": {"tone": "x"}, "reasoning": {"mode": "pro"}},
         "text.tone, reasoning.mode"),
        (TURNS, {"prompt_cache_options": {"comparison_response_id": "r"}},
         "prompt_cache_options.comparison_response_id"),
        (CLAUDE, {"messages": user("a", mood=1)}, "messages[].mood"),
        (CLAUDE, {"messages": user([{"type": "text", "text": "a", "mood": 1}])},
         "messages[].content[].mood"),
        (CLAUDE, {"tools": [{"name": "f", "input_schema": {"type": "object"},
                             "input_examples": [{}]}]}, "tools[].input_examples"),
        (CLAUDE, {"output_config": {"task_budget": {"total": 5}}}, "output_config.task_budget"),
        (CHATS, {'a"b\\c\r\nd: é': 1}, r"a'bc"),
    ],
)  # fmt: skip
async def test_a_member_is_named(make_api, path, fields, names):
    response = await make_api("ok", chat=chat_model()).call(
        "POST", path, {**BODIES[path], **fields}, FakeStream()
    )
    assert response.status == 200, response.body
    warning = dict(response.headers)["Warning"]
    assert f"unknown, and ignored: {names}" in warning
    assert warning.isascii()
    assert warning.isprintable()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses/input_tokens", {"input": "Hi"}),
        ("/v1/responses/compact", {"input": "Hi"}),
        ("/v1/conversations", {}),
        ("/v1/messages/count_tokens", {"messages": user("Hi")}),
        ("/tokenize", {"prompt": "Hi"}),
        ("/detokenize", {"tokens": [72]}),
        ("/v3/tokenize", {"text": "Hi"}),
        ("/api/chat", {"messages": user("Hi"), "stream": False}),
        ("/api/chat", {"messages": user("Hi")}),
        ("/api/generate", {"prompt": "Hi"}),
        ("/api/show", {}),
    ],
)
async def test_every_endpoint_names_fields(make_api, make_state, path, body):
    api = make_api("ok", chat=chat_model(), model=model_info(max_model_len=4000),
                   state=make_state())  # fmt: skip
    stream = FakeStream()
    body = {**body, "mood": "good"} | ({} if path == "/v1/conversations" else {"model": "fake"})
    response = await api.call("POST", path, body, stream)
    assert response is None or response.status == 200, response.body
    headers = stream.headers if response is None else response.headers
    found = [value for name, value in headers if name == "Warning"]
    assert found == ['299 - "unknown, and ignored: mood"']


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "Hi"}),
        ("/v3/embeddings", {"input": "Hi"}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/api/embed", {"input": "Hi"}),
    ],
)
async def test_every_encoder_names_fields(make_encoder_api, path, body):
    task = Task.RERANK if path == "/v1/rerank" else Task.EMBEDDINGS
    api = make_encoder_api(served_encoder(task))
    response = await api.call("POST", path, {"model": "fake", **body, "mood": 1})
    assert response.status == 200, response.body
    assert dict(response.headers)["Warning"] == '299 - "unknown, and ignored: mood"'


@pytest.mark.parametrize("length", [10, 70_000, 1_100_000])
async def test_in_bodies_of_each_size(make_api, length):
    body = {**CHAT, "messages": user("a", mood="x" * length), "other": "y" * length}
    api = make_api("ok", chat=chat_model())
    response = await api.call("POST", CHATS, body, FakeStream())
    assert "ignored: other, messages[].mood" in dict(response.headers)["Warning"]


async def test_names_are_bounded(make_api, caplog):
    api = make_api("ok", chat=chat_model())
    for turn in range(80):
        body = {**CHAT, **{f"{'x' * 200}{turn}_{n}": 1 for n in range(100)}}
        response = await api.call("POST", CHATS, body, FakeStream())
        assert len(dict(response.headers)["Warning"]) < 1100
    assert len(api.context.bodies._logged) <= 1016
