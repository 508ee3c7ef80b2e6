"""Makes the members that every part of an answer repeats, such as its id and its
`system_fingerprint`, and what it ends with: `usage` and `metrics`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fastovms import __version__
from fastovms.api.generation.deltas import Usage
from fastovms.api.wire.dialect import Dialect
from fastovms.telemetry.timings import SampleTimings

SYSTEM_FINGERPRINT: Final = f"fastovms-{__version__}"
"""What each answer says of the server that made it. The precision of the model is no part of it."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The members that every part of one answer repeats."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    dialect: Dialect

    def members(self, kind: str) -> dict[str, object]:
        """Returns the members before `choices`; `kind` is the value of `object`."""
        members: dict[str, object] = {"object": kind, "created": self.created, "model": self.model}
        if not self.dialect.has_ids:
            return members
        return {"id": self.id, **members, "system_fingerprint": self.system_fingerprint}


def usage_body(usage: Usage) -> dict[str, object]:
    body: dict[str, object] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if usage.reasoning_tokens is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return body


def closing_members(usage: Usage) -> dict[str, object]:
    """Returns what tells of a request's cost, when all of it is known."""
    return {"usage": usage_body(usage), **metrics_member(usage.timings)}


def metrics_member(timings: SampleTimings | None) -> dict[str, object]:
    """Returns `metrics` as vLLM has it, in milliseconds; nothing where it is not to be told."""
    if timings is None:
        return {}
    per_token, rate = timings.per_token, timings.tokens_per_second
    metrics = {
        "time_to_first_token_ms": _milliseconds(timings.prefill),
        "generation_time_ms": _milliseconds(timings.decode),
        "queue_time_ms": _milliseconds(timings.queue),
        "mean_itl_ms": None if per_token is None else _milliseconds(per_token),
        "tokens_per_second": None if rate is None else round(rate, 3),
    }
    return {"metrics": metrics}


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
