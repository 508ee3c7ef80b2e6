from __future__ import annotations

import pytest

from fastovms.client.request_failed import RequestFailed
from fastovms.client.stream_event import read_event


@pytest.mark.parametrize(
    ("choice", "brings_output"),
    [
        ('{"text": "a"}', True),
        ('{"text": ""}', True),  # a token that shows no text yet
        ('{"text": "", "finish_reason": "stop"}', False),
        ('{"text": "a", "finish_reason": "length"}', True),
        ('{"delta": {"role": "assistant", "content": ""}}', False),
        ('{"delta": {"content": "a"}}', True),
        ('{"delta": {"reasoning_content": "a"}}', True),
        ('{"delta": {"reasoning": "a"}}', True),
        ('{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}}', True),
        ('{"delta": {}, "finish_reason": "stop"}', False),
    ],
)
def test_which_events_bring_output(choice: str, brings_output: bool) -> None:
    [read] = read_event(f'{{"id": "x", "choices": [{choice}]}}'.encode()).choices
    assert read.brings_output == brings_output


def test_both_names_of_thoughts() -> None:
    for name in ("reasoning", "reasoning_content"):
        event = read_event(b'{"choices": [{"delta": {"%s": "hm"}}]}' % name.encode())
        assert event.choices[0].delta is not None
        assert event.choices[0].delta.thought == "hm"


def test_usage() -> None:
    event = read_event(b'{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}')
    assert event.usage is not None
    assert (event.usage.prompt_tokens, event.usage.completion_tokens) == (3, 5)


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (b'{"error": {"message": "engine died"}}', "error in the stream", "engine died"),
        (b'{"error": "engine died"}', "error in the stream", "engine died"),
        (b"{", "protocol error", "an event"),
        (b'{"choices": [{"text": 5}]}', "protocol error", "an event"),
    ],
)
def test_what_is_no_event(data: bytes, kind: str, reason: str) -> None:
    with pytest.raises(RequestFailed, match=reason) as failure:
        read_event(data)
    assert failure.value.kind == kind
