"""Tests the answers of every endpoint strictly against the types in the vendors' packages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic.types import (
    Message,
    MessageDeltaUsage,
    MessageTokensCount,
    ModelInfo,
    RawMessageStreamEvent,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    Usage,
)
from anthropic.types.raw_message_delta_event import Delta
from openai.types import Batch, Completion, FileObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.conversations import Conversation, ConversationItemList
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import BaseModel, TypeAdapter

from tests.real_server import NAME, Server, server

__all__ = ["server"]

CHAT = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}
FUNCTION = {"name": "f", "parameters": PARAMETERS}
TOOLS = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}
LOGPROBS = {"logprobs": True, "top_logprobs": 2}
ASKED = {"model": NAME, "input": "Hi", "max_output_tokens": 40}
FLAT = {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"}
TEXT = {"model": NAME, "prompt": "Hi", "max_tokens": 4}
USES = {"tools": [{"name": "f", "input_schema": PARAMETERS}], "tool_choice": {"type": "any"}}
THINKS = {"thinking": {"type": "adaptive"}}

ANSWERS: list[tuple[str, dict[str, Any], Any]] = [
    ("/v1/chat/completions", CHAT, ChatCompletion),
    ("/v1/chat/completions", {**CHAT, **TOOLS}, ChatCompletion),
    ("/v1/chat/completions", {**CHAT, **LOGPROBS, "n": 2}, ChatCompletion),
    ("/v1/completions", {**TEXT, "logprobs": 2}, Completion),
    ("/v1/completions", {**TEXT, "n": 2}, Completion),
    ("/v1/responses", ASKED, Response),
    ("/v1/responses", {**ASKED, **FLAT}, Response),
    ("/v1/responses", {**ASKED, "background": True}, Response),
    ("/v1/responses/input_tokens", ASKED, InputTokenCountResponse),
    ("/v1/conversations", {"items": [{"role": "user", "content": "Hi"}]}, Conversation),
    ("/v1/messages", CHAT, Message),
    ("/v1/messages", {**CHAT, **USES}, Message),
    ("/v1/messages", {**CHAT, **THINKS}, Message),
    ("/v1/messages/count_tokens", CHAT, MessageTokensCount),
]
"""The checked endpoints. `/responses/compact` is not checked, because it repeats the user's
messages, nor is `/completions`, whose nulls in streams and for the first token of `echo` equal
OpenAI's."""

STREAMS: list[tuple[str, dict[str, Any], Any]] = [
    ("/v1/chat/completions", {**CHAT, **LOGPROBS}, ChatCompletionChunk),
    ("/v1/chat/completions", {**CHAT, **TOOLS}, ChatCompletionChunk),
    ("/v1/responses", {**ASKED, "include": ["message.output_text.logprobs"]}, ResponseStreamEvent),
    ("/v1/responses", {**ASKED, **FLAT}, ResponseStreamEvent),
    ("/v1/responses", {**ASKED, "reasoning": {"effort": "high"}}, ResponseStreamEvent),
    ("/v1/messages", {**CHAT, **THINKS}, RawMessageStreamEvent),
    ("/v1/messages", {**CHAT, **USES}, RawMessageStreamEvent),
]
COMPLETE = (
    Message,
    Usage,
    MessageDeltaUsage,
    Delta,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    ModelInfo,
)
"""Types for which Anthropic's schema requires each member, which may be null."""

OPTIONAL = {"diagnostics", "speed", "toolset_name"}
"""Members that are not in this schema, or belong to beta features."""


def send(server: Server, path: str, body: object = None, **headers: str) -> bytes:
    reply = server.send("GET" if body is None else "POST", path, body, **headers)
    assert reply.status == 200, reply.body
    return reply.body


def check(data: bytes, kind: Any) -> Any:
    """Validates a JSON text, in which null differs from an absent member."""
    read = TypeAdapter(kind).validate_json(data, strict=True)
    for value in parts(read):
        if isinstance(value, COMPLETE):
            assert type(value).model_fields.keys() - value.model_fields_set <= OPTIONAL, value
    return read


def parts(value: object) -> Iterator[BaseModel]:
    if isinstance(value, BaseModel):
        yield value
        value = list(dict(value).values())
    if isinstance(value, list):
        for each in value:
            yield from parts(each)


@pytest.mark.parametrize(("path", "body", "kind"), ANSWERS)
def test_answer_matches_the_schema_of_the_vendor(server, path, body, kind) -> None:
    check(send(server, path, body), kind)


@pytest.mark.parametrize(("path", "body", "kind"), STREAMS)
def test_streamed_events_match_the_schema_of_the_vendor(server, path, body, kind) -> None:
    lines = send(server, path, {**body, "stream": True}).splitlines()
    told = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: {")]
    assert len(told) > 2
    for event in told:
        if event != b'{"type":"ping"}':
            check(event, kind)


def test_stored_objects_and_lists_match_the_schema_of_the_vendor(server) -> None:
    models = json.loads(send(server, "/v1/models"))["data"]
    check(json.dumps(models).encode(), list[Model])
    check(send(server, f"/v1/models/{NAME}", anthropic_version="2023-06-01"), ModelInfo)
    response = check(send(server, "/v1/responses", {**ASKED, **FLAT}), Response)
    check(send(server, f"/v1/responses/{response.id}"), Response)
    check(send(server, f"/v1/responses/{response.id}/input_items"), ResponseItemList)
    action = {"type": "search", "query": "a"}
    search = {"type": "web_search_call", "id": "ws", "status": "completed", "action": action}
    made = {"items": [{"role": "user", "content": "Hi"}, search]}
    conversation = check(send(server, "/v1/conversations", made), Conversation)
    check(send(server, f"/v1/conversations/{conversation.id}/items"), ConversationItemList)


def test_files_and_batches_match_the_schema_of_the_vendor(server) -> None:
    client = server.client("/v1")
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": TEXT}
    raw = client.files.with_raw_response.create(
        file=("a.jsonl", json.dumps(line).encode()), purpose="batch"
    )
    file = check(raw.content, FileObject)
    made = client.batches.with_raw_response.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    check(made.content, Batch)
