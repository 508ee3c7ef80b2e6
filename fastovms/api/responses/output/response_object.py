"""Makes the response object: what is echoed of the request, and what has become of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastovms.api.generation.deltas import Usage
from fastovms.api.generation.envelope import metrics_member
from fastovms.api.responses.input.hosted_items import Item
from fastovms.params import FinishReason


@dataclass(frozen=True, slots=True)
class ResponseStatus:
    """What changes while a response is made.

    Attributes:
        name: "queued", "in_progress", "completed", "incomplete", "failed" or "cancelled".
        completed_at: unix seconds.
        error: code and message.
        incomplete_reason: why there is no more.
    """

    name: str
    completed_at: int | None = None
    usage: Usage | None = None
    error: Mapping[str, str] | None = None
    incomplete_reason: str | None = None

    @property
    def is_final(self) -> bool:
        return self.name not in ("queued", "in_progress")

    @property
    def is_answer(self) -> bool:
        """Whether the model has said what it had to say, or as much of it as was allowed."""
        return self.name in ("completed", "incomplete")

    def members(self) -> dict[str, object]:
        reason = self.incomplete_reason
        return {
            "status": self.name,
            "completed_at": self.completed_at,
            "error": self.error,
            "incomplete_details": None if reason is None else {"reason": reason},
            "usage": None if self.usage is None else usage_body(self.usage),
            **metrics_member(None if self.usage is None else self.usage.timings),
        }


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """What never changes of a response object.

    Attributes:
        members: the id, when it was asked for, and the request's fields.
        length_reason: why there is no more of an answer that became too long.
    """

    members: Mapping[str, Any]
    length_reason: str

    @property
    def id(self) -> str:
        return str(self.members["id"])

    def not_kept(self) -> ResponseForm:
        return replace(self, members={**self.members, "store": False})

    def body(self, status: ResponseStatus, output: Sequence[Item] | None) -> dict[str, object]:
        """Returns the object.

        Args:
            output: None = the body is without it.
        """
        body = {**self.members, **status.members()}
        if output is not None:
            body["output"] = output
        return body

    def ended(
        self, reason: FinishReason, usage: Usage, now: float, *, has_cut_call: bool
    ) -> ResponseStatus:
        """Returns the status after the last token. A call that is not whole, as of a stop string
        that was within it, makes the response incomplete: agents run the calls of those that are
        completed."""
        if reason is FinishReason.LENGTH:
            return ResponseStatus("incomplete", usage=usage, incomplete_reason=self.length_reason)
        if has_cut_call:
            return ResponseStatus("incomplete", usage=usage, incomplete_reason=reason.value)
        return ResponseStatus("completed", completed_at=int(now), usage=usage)


def failed(message: str, code: str = "server_error", usage: Usage | None = None) -> ResponseStatus:
    return ResponseStatus("failed", usage=usage, error={"code": code, "message": message})


def usage_body(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
