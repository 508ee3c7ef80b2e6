"""The oldest messages are dropped, and no more than have to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.api.conversation.dropped_messages import fitting
from fastovms.api.request.prompting.prompts import CONTEXT_EXCEEDED, Prompt
from fastovms.errors import InvalidField


def fit(messages: list[dict[str, str]], limit: int) -> tuple[str, int]:
    num_calls = 0

    def make_prompt(kept) -> Prompt:
        nonlocal num_calls
        num_calls += 1
        text = "".join(f"{message['role'][0]}{message['content']}" for message in kept)
        if len(text) > 2 * limit:
            raise InvalidField("far too long", param="messages", code=CONTEXT_EXCEEDED)
        return Prompt(list(text.encode()), text)

    prompt = fitting(messages, make_prompt, limit)
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


def test_a_last_message_that_is_far_too_long_is_refused():
    with pytest.raises(InvalidField):
        fit([{"role": "user", "content": "x" * 100}], 10)
