"""Ranges in words, and which paths are answered in which dialect."""

from __future__ import annotations

import pytest

from fastovms.api.wire.dialect import (
    ANTHROPIC,
    COHERE,
    DIALECTS,
    OLLAMA,
    OPENAI,
    OVMS,
    Dialect,
    Range,
    dialect_of,
)


@pytest.mark.parametrize(
    ("range_", "inside", "outside", "words"),
    [
        (Range(0, 2), [0, 1.5, 2], [-0.1, 2.1], "at least 0 and at most 2"),
        (Range(0, 1, low_open=True), [1e-9, 1], [0, -1], "greater than 0 and at most 1"),
        (Range(0, 1, high_open=True), [0, 0.9], [1], "at least 0 and less than 1"),
        (Range(1, also=-1), [-1, 1, 9**99], [0, -2], "-1 or at least 1"),
        (Range(high=3), [-(9**99), 3], [4], "at most 3"),
    ],
)
def test_ranges(range_: Range, inside: list[float], outside: list[float], words: str) -> None:
    assert all(value in range_ for value in inside)
    assert not any(value in range_ for value in outside)
    assert str(range_) == words


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/models", OPENAI),
        ("/v3", OVMS),
        ("/v3/v1/models", OVMS),
        ("/v2/health/ready", OVMS),
        ("/v2/rerank", COHERE),
        ("/v33/models", OPENAI),
        ("/api/chat", OLLAMA),
        ("/apis", OPENAI),
        ("/v1/messages", ANTHROPIC),
        ("/v1/messages/count_tokens", ANTHROPIC),
        ("/v1/messagesx", OPENAI),
        ("/", OPENAI),
        ("", OPENAI),
    ],
)
def test_paths(path: str, dialect: Dialect) -> None:
    assert dialect_of(path) is dialect


def test_both_know_the_same_fields_and_no_prefix_twice() -> None:
    assert OPENAI.ranges.keys() == OVMS.ranges.keys()
    prefixes = [prefix for dialect in DIALECTS for prefix in dialect.prefixes]
    assert len(set(prefixes)) == len(prefixes)
