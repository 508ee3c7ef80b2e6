"""Tokens of all kinds of answers are added up."""

from __future__ import annotations

import json

import msgspec
import pytest

from fastovms.batches import line_usage
from fastovms.batches.line_usage import BatchUsage, usage_of

CHAT = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
RESPONSE = {
    "input_tokens": 50,
    "output_tokens": 30,
    "input_tokens_details": {"cached_tokens": 20},
    "output_tokens_details": {"reasoning_tokens": 10},
}
MESSAGE = {
    "input_tokens": 1000,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 3000,
    "output_tokens": 700,
    "output_tokens_details": {"thinking_tokens": 600},
}
EMBEDDING = {"prompt_tokens": 500, "total_tokens": 500}


def test_all_forms() -> None:
    usage = BatchUsage()
    for given in (CHAT, RESPONSE, MESSAGE, EMBEDDING, None):
        usage.add(usage_of(json.dumps({"id": "x", "usage": given}).encode()))
    for body in (b"[]", b"{}", b"", b'{"usage":5}'):
        usage.add(usage_of(body))
    assert usage == BatchUsage(4555, 3022, 733, 611)


LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("body", "is_at_end"),
    [
        ({"data": LONG, "usage": EMBEDDING}, True),
        ({"data": LONG, "usage": EMBEDDING, "a": {"usage": CHAT}}, True),
        ({"data": LONG, "usage": EMBEDDING, "a": {"b": 1, "usage": CHAT}}, True),
        ({"data": LONG, "usage": EMBEDDING, "a": ',"usage":{"prompt_tokens":1}}'}, True),
        ({"data": LONG, "usage": EMBEDDING, "a": "\\"}, True),
        ({"usage": EMBEDDING, "data": LONG}, False),
        ({"data": [LONG], "b": {"a": 1, "usage": CHAT}}, False),
        ({"usage": EMBEDDING, "data": LONG, "b": {"a": 1, "usage": CHAT}}, False),
    ],
)
def test_of_a_long_answer_the_end_is_read(monkeypatch, body: dict, is_at_end: bool) -> None:
    sizes: list[int] = []
    decode = msgspec.json.decode

    def measured(content: bytes, type: type) -> object:
        sizes.append(len(content))
        return decode(content, type=type)

    monkeypatch.setattr(line_usage.msgspec.json, "decode", measured)
    usage = BatchUsage()
    usage.add(usage_of(json.dumps(body, separators=(",", ":")).encode()))
    assert usage.input_tokens == (500 if "usage" in body else 0)
    assert (max(sizes) < 1000) is is_at_end
