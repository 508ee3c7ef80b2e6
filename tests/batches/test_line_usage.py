"""Tokens of all kinds of answers are added up."""

from __future__ import annotations

import json

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
EMBEDDING = {"prompt_tokens": 500, "total_tokens": 500}


def test_all_forms() -> None:
    usage = BatchUsage()
    for given in (CHAT, RESPONSE, EMBEDDING, None):
        usage.add(usage_of(json.dumps({"id": "x", "usage": given}).encode()))
    for body in (b"[]", b"{}", b"", b'{"usage":5}'):
        usage.add(usage_of(body))
    assert usage == BatchUsage(555, 22, 33, 11)
