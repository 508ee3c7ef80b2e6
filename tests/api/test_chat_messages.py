"""Tests of `fastovms/api/chat_messages.py`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.api.chat_messages import (
    seal,
    seal_summary,
    summary_message,
    unseal,
    unseal_summary,
)
from fastovms.api.prompt import CONTEXT_EXCEEDED, Prompt, fit_messages
from fastovms.errors import InvalidField
from tests.api.chat_models import MESSAGES, prompt_of
from tests.api.chats import BODY, V1, make

# Messages in the format of chat templates.


__all__ = ["make"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"name": "f", "arguments": '{"a": 1}'}, "{f {'a': 1}}"),
        ({"name": "f", "arguments": {"a": 1}}, "{f {'a': 1}}"),
        ({"name": "f", "arguments": ""}, "{f {}}"),
        ({"name": "f", "arguments": None}, "{f {}}"),
        ({"name": "f"}, "{f {}}"),
    ],
)
async def test_calls_in_the_history(make, given, shown):
    for answer in (
        {"tool_calls": [{"id": "1", "type": "function", "function": given}]},
        {"tool_calls": [{"function": given}]},
        {"function_call": given},
    ):
        api = make()
        messages = [*MESSAGES, {"role": "assistant", **answer}]
        await api.answer(V1, {**BODY, "messages": messages})
        assert prompt_of(api).replace('"', "'") == f"u:Hi;a:{shown};>"


# The oldest messages are dropped, and only as many as necessary.


def fit(messages: list[dict[str, str]], limit: int) -> tuple[str, int]:
    num_calls = 0

    def make_prompt(kept) -> Prompt:
        nonlocal num_calls
        num_calls += 1
        text = "".join(f"{message['role'][0]}{message['content']}" for message in kept)
        if len(text) > 2 * limit:
            raise InvalidField("far too long", param="messages", code=CONTEXT_EXCEEDED)
        return Prompt(list(text.encode()), text)

    prompt = fit_messages(messages, make_prompt, limit)
    return prompt.text or "", num_calls


@pytest.mark.parametrize(
    ("roles", "limit", "expected"),
    [
        ("suaua", 99, "s0u1a2u3a4"),
        ("suaua", 8, "s0u3a4"),
        ("suauau", 4, "s0u5"),
        ("suatatu", 9, "s0u6"),
        ("suatat", 99, "s0u1a2t3a4t5"),
        ("aaaa", 4, "a2a3"),
        ("satat", 6, "s0a3t4"),
        ("u", 2, "u0"),
    ],
)
def test_the_oldest_messages_are_dropped(roles, limit, expected):
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    messages = [{"role": names[role], "content": f"{n}"} for n, role in enumerate(roles)]
    assert fit(messages, limit)[0] == expected


@pytest.mark.slow
@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(1, 300))
def test_as_many_messages_are_kept_as_fit(lengths, limit):
    messages = [{"role": "user", "content": "x" * length} for length in lengths]
    sizes = [length + 1 for length in lengths]
    kept = len(sizes)
    while kept > 1 and sum(sizes[-kept:]) > limit:
        kept -= 1
    if sum(sizes[-kept:]) > 2 * limit:
        return
    text, num_calls = fit(messages, limit)
    assert len(text) == sum(sizes[-kept:])
    assert num_calls <= 9


# Sealed reasoning and summaries are read again, and only those of this server.


@given(st.text())
def test_sealed_reasoning_is_read_again(text):
    assert unseal(seal(text)) == text
    assert unseal_summary(seal_summary(text)) == text
    assert summary_message(seal_summary(text)).endswith(f":\n{text}")


@pytest.mark.parametrize("content", ["gAAAAAB_other", "/+8=", "ü"])
def test_content_sealed_by_another_server_is_ignored(content):
    assert unseal(content) == unseal_summary(content) == ""


def test_reasoning_is_no_summary():
    assert unseal_summary(seal("hm")) == ""
