"""Which parser reads a chat's answer."""

from __future__ import annotations

import pytest

from tests.api.chat_models import call_text, prompt_of, tool
from tests.api.chats import BODY, V1, V3, make

__all__ = ["make"]


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_text_with_special_tokens_is_parsed_in_openais_dialect_alone(make, choice):
    body = {**BODY, "tools": [tool()], "tool_choice": choice, "skip_special_tokens": False}
    _, answer = await make(call_text()).post(V1, body)
    assert answer["choices"][0]["message"]["tool_calls"]
    _, answer = await make(call_text()).post(V3, body)
    assert answer["choices"][0]["message"]["content"] == call_text()


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
