"""The members that every part of an answer repeats."""

from __future__ import annotations

import pytest

from fastovms.api.generation.deltas import Usage
from fastovms.api.generation.envelope import Envelope, closing_members, usage_body
from fastovms.api.wire.dialect import OPENAI, OVMS, Dialect
from fastovms.telemetry.timings import SampleTimings

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


def test_timings_are_told_in_milliseconds_beside_usage() -> None:
    usage = Usage(3, 5, 1, None, SampleTimings(0.002, 0.25, 1.0, 5))
    assert closing_members(usage) == {
        "usage": usage_body(usage),
        "metrics": {
            "time_to_first_token_ms": 250.0,
            "generation_time_ms": 1000.0,
            "queue_time_ms": 2.0,
            "mean_itl_ms": 250.0,
            "tokens_per_second": 4.0,
        },
    }
    assert set(closing_members(Usage(3, 5, 1))) == {"usage"}
