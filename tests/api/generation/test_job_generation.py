"""Every endpoint that has a single prompt runs it, parses its text and tells of it in the log."""

from __future__ import annotations

import json

import pytest

from tests.api.chat_models import MESSAGES
from tests.api.chats import make
from tests.fakes import FakeStream

__all__ = ["make"]

CHAT = {"model": "fake", "messages": MESSAGES}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", {**CHAT, "max_tokens": 50}),
        ("/api/chat", {**CHAT, "stream": False}),
        ("/v1/responses", {"model": "fake", "input": "Hi"}),
    ],
)
async def test_a_job_is_run_whoever_asks(make, path, body):
    api = make("<think>hm</think>Good")
    answer = await api.call("POST", path, json.dumps(body).encode(), FakeStream())
    assert answer.status == 200, answer.body
    [request] = api.backend.submitted
    assert request.prompt_token_ids
    assert b"Good" in answer.body
    assert b"</think>" not in answer.body, "it was parsed"
    assert api.backend.stats().num_running == 0
