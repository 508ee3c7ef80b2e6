"""Requests of the Messages API, and the messages that the events of a stream form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.chat_models import PARAMETERS, chat_model
from tests.fakes import model_info

PATH = "/v1/messages"
USER = {"role": "user", "content": "Hi"}
BODY = {"model": "fake", "max_tokens": 500, "messages": [USER]}
TOOL = {"name": "get_weather", "description": "A tool", "input_schema": PARAMETERS}
THINKS = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
THOUGHT = "<think>\nhm, hm\n</think>\n\nHello!"


@pytest.fixture
def make(make_api):
    def make_messages(script="Hello!", *, chat=None, **options):
        model = model_info(max_model_len=2000)
        return make_api(script, model=model, chat=chat or chat_model(), **options)

    return make_messages


def join(events: list[Any]) -> dict[str, Any]:
    """Returns the message that the events of a stream form, and checks their order."""
    start, ping, *middle, end, stop = events
    assert [each["type"] for each in (start, ping, end, stop)] == [
        "message_start",
        "ping",
        "message_delta",
        "message_stop",
    ]
    message: dict[str, Any] = start["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    is_open = False
    inputs = ""
    for event in middle:
        kind, index = event["type"], event["index"]
        if kind == "content_block_start":
            assert (is_open, index) == (False, len(message["content"]))
            is_open, inputs = True, ""
            message["content"].append(event["content_block"])
            continue
        assert (is_open, index) == (True, len(message["content"]) - 1)
        block = message["content"][-1]
        if kind == "content_block_stop":
            is_open = False
            if inputs:
                block["input"] = json.loads(inputs) if inputs.endswith("}") else inputs
            continue
        delta = dict(event["delta"])
        kind = delta.pop("type").removesuffix("_delta")
        [(member, text)] = delta.items()
        assert kind in ("input_json", "signature") or kind == block["type"]
        if kind == "input_json":
            inputs += text
        else:
            block[member] += text
    assert not is_open
    return {**message, **end["delta"], "usage": {**message["usage"], **end["usage"]}}


async def ask(api: Any, streamed: bool, **fields: Any) -> dict[str, Any]:
    """Returns the message that answers a request."""
    body = {**BODY, **fields}
    if streamed:
        return join(await api.stream(PATH, body))
    return await api.answer(PATH, body)
