"""The members that every part of an answer repeats."""

from __future__ import annotations

import pytest

from fastovms.api.generation.deltas import Usage
from fastovms.api.generation.envelope import Envelope, usage_body
from fastovms.api.wire.dialect import OPENAI, OVMS, Dialect

COMMON = {"object": "kind", "created": 5, "model": "m"}


@pytest.mark.parametrize(
    ("dialect", "members"),
    [(OPENAI, {"id": "i", **COMMON, "system_fingerprint": "f"}), (OVMS, COMMON)],
)
def test_only_one_dialect_has_ids(dialect: Dialect, members: dict[str, object]) -> None:
    assert Envelope("i", 5, "m", "f", dialect).members("kind") == members


@pytest.mark.parametrize("reasoning", [None, 0, 2])
def test_reasoning_is_counted_where_it_is_told_apart(reasoning: int | None) -> None:
    told = usage_body(Usage(3, 4, 1, reasoning))
    details = told.pop("completion_tokens_details", None)
    assert details == (None if reasoning is None else {"reasoning_tokens": reasoning})
    assert told == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
