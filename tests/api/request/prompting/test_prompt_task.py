"""What the backend gets for a prompt, and what a request is told that asks for too much."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.config.api_config import ApiConfig
from tests.api.chat_models import MESSAGES, chat_model
from tests.fakes import model_info

COMPLETIONS = ("/v1/completions", {"prompt": "ab"})
CHATS = ("/v1/chat/completions", {"messages": MESSAGES})
RESPONSES = ("/v1/responses", {"input": "ab"})


async def refusal(make_api, endpoint: tuple[str, dict[str, Any]], fields) -> tuple[str, str]:
    """The field that a request is refused for, and the message."""
    path, body = endpoint
    api = make_api(
        "z",
        model=model_info(max_model_len=2000),
        chat=chat_model(),
        config=ApiConfig(max_total_logprobs=1),
    )
    status, answer = await api.post(path, {"model": "fake", **body, **fields})
    assert (status, api.backend.submitted) == (400, [])
    return answer["error"]["param"], answer["error"]["message"]


@pytest.mark.parametrize(
    ("endpoint", "fields", "name", "limit"),
    [
        (COMPLETIONS, {"logprobs": 2}, "logprobs 2", "max_tokens 10"),
        (CHATS, {"logprobs": True, "top_logprobs": 2}, "top_logprobs 2", "max_tokens 10"),
        (CHATS, {"logprobs": True}, "logprobs 0", "max_completion_tokens 10"),
        (RESPONSES, {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
         "top_logprobs 2", "max_output_tokens 10"),
    ],
)  # fmt: skip
async def test_too_many_log_probabilities_are_named_as_the_client_does(
    make_api, endpoint, fields, name, limit
):
    limit_field = limit.split()[0]
    param, message = await refusal(make_api, endpoint, {**fields, limit_field: 10})
    assert param == name.split()[0]
    assert message.startswith(f"{param} would report up to ")
    assert f" ({name}, n 1, " in message
    assert f" prompt tokens, {limit})" in message


@pytest.mark.parametrize(
    ("endpoint", "limit"),
    [
        (COMPLETIONS, "max_tokens"),
        (CHATS, "max_tokens"),
        (CHATS, "max_completion_tokens"),
        (RESPONSES, "max_output_tokens"),
    ],
)
async def test_more_tokens_at_least_than_at_most(make_api, endpoint, limit):
    param, message = await refusal(make_api, endpoint, {"min_tokens": 5, limit: 4})
    assert (param, message) == ("min_tokens", f"min_tokens must be at most {limit} (4), not 5")
