"""Tests that the frames of streams, which are assembled from constant bytes, equal the encoded
structs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fastovms.api.chat import ChatCompletionChunk
from fastovms.api.completions import CompletionChunk
from fastovms.config import ApiConfig
from fastovms.parts.messages.endpoints import MESSAGE_EVENT
from tests.api import completion_requests
from tests.api.chat_models import MESSAGES, call_text, chat_model, custom, tool
from tests.api.described import read
from tests.api.messages import asking
from tests.fakes import FakeStream, model_info

SPOKEN = f'<think>h"m</think>Hé\n{call_text()}'
USAGE = {"stream_options": {"include_usage": True}}
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
DETAILS = {**USAGE, "return_token_ids": True}
FUNCTION = {"name": "get_weather", "parameters": tool()["function"]["parameters"]}
CHAT = {"model": "fake", "messages": MESSAGES}
CHATS: list[dict[str, Any]] = [
    {},
    {"tools": [tool()], **USAGE},
    {"tools": [tool()], **DETAILS, "logprobs": True, "top_logprobs": 2, "n": 2},
    {"tools": [custom("get_weather")]},
    {"functions": [FUNCTION], **USAGE},
    {"messages": [*MESSAGES, {"role": "assistant", "content": "H"}], "echo": True,
     "add_generation_prompt": False, "return_prompt_text": True},
]  # fmt: skip
COMPLETIONS: list[dict[str, Any]] = [
    {},
    {**DETAILS, "logprobs": 2, "n": 2},
    {"echo": True, "logprobs": 1, "prompt": ["ab", "c"]},
    {"echo": True, "max_tokens": 0},
]
ASKED = [
    *((f"{prefix}/chat/completions", {**CHAT, **body}, ChatCompletionChunk)
      for prefix in ("/v1", "/v3") for body in CHATS),
    *((f"{prefix}/completions", {**completion_requests.BODY, **body}, CompletionChunk)
      for prefix in ("/v1", "/v3") for body in COMPLETIONS),
    ("/v1/chat/completions", {**CHAT, **CONTINUOUS}, ChatCompletionChunk),
    ("/v1/completions", {**completion_requests.BODY, **CONTINUOUS}, CompletionChunk),
    *((asking.PATH, {**asking.BODY, **body}, MESSAGE_EVENT)
      for body in ({}, {"tools": [asking.TOOL]}, asking.THINKS)),
]  # fmt: skip


def frames_of(stream: FakeStream) -> list[bytes]:
    """Returns the JSON of every frame."""
    frames = b"".join(stream.writes).split(b"\n\n")[:-1]
    return [frame.rpartition(b"data: ")[2] for frame in frames if not frame.endswith(b"[DONE]")]


@pytest.mark.parametrize(("path", "body", "kind"), ASKED)
@pytest.mark.parametrize("tokens_per_step", [1, 1000])
async def test_a_frame_is_its_struct(make_api, path, body, kind, tokens_per_step):
    config = ApiConfig(per_request_metrics=True)
    api = make_api(
        lambda request, index: SPOKEN.encode(),
        model=model_info(max_model_len=2000),
        chat=chat_model(),
        config=config,
        tokens_per_step=tokens_per_step,
    )
    stream = FakeStream()
    assert await api.call("POST", path, {**body, "stream": True}, stream) is None
    frames = frames_of(stream)
    assert frames
    for frame in frames:
        assert msgspec.json.encode(msgspec.json.decode(frame, type=kind)) == frame


@pytest.mark.parametrize(
    "frame",
    [
        b'{"object":"chat.completion.chunk","model":"m","choices":[]}',
        b'{"object":"chat.completion.chunk","created":1,"model":"m","choices":[],"other":1}',
        b'{"object":"chat.completion.chunk","created":1.5,"model":"m","choices":[]}',
    ],
)
def test_frame_with_missing_unknown_or_mistyped_member_is_refused(frame):
    with pytest.raises(AssertionError):
        read(frame, ChatCompletionChunk)
