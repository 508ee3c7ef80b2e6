"""Request bodies of chats with fakes, and the messages that the deltas of a stream form."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.chat_models import MESSAGES, chat_model
from tests.fakes import model_info

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


def join(events: list) -> dict[int, dict[str, Any]]:
    """Returns the message that the deltas of each choice form."""
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


def content_logprobs(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the log probabilities of choices, or of the chunks of a stream."""
    told = [choice["logprobs"] for choice in choices]
    return [entry for logprobs in told if logprobs for entry in logprobs["content"]]
