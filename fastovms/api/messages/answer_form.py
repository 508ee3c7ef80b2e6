"""Says how an answer is told in Anthropic's form: its blocks, why it ended and what it has cost."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastovms.api.conversation.sealed_text import seal
from fastovms.api.conversation.shown_pieces import ShownPieces
from fastovms.api.generation.deltas import Usage
from fastovms.params import FinishReason


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How the pieces of an answer are told.

    Attributes:
        shown: which pieces the client gets.
        new_call_id: makes the ids of uses of tools.
        max_tokens: how many tokens the answer may have, as far as the context has room for them.
        omits_thinking: whether thoughts are told as their signature only.
    """

    shown: ShownPieces
    new_call_id: Callable[[], str]
    max_tokens: int
    omits_thinking: bool = False

    def thinking(self, text: str) -> str:
        """Returns what is shown of thoughts."""
        return "" if self.omits_thinking else text

    def signature(self, text: str) -> str:
        """Returns the signature of thoughts, which holds them where they are not shown."""
        if self.omits_thinking:
            return seal(text)
        return hashlib.sha256(text.encode(errors="replace")).hexdigest()

    def ending(
        self,
        reason: FinishReason,
        stop: str | int | None,
        are_whole: Sequence[bool],
        num_tokens: int,
    ) -> dict[str, str | None]:
        """Returns why an answer has ended.

        Args:
            stop: the stop string, or the id of the token, that has ended it.
            are_whole: whether each of its calls is: those of an answer that was cut must not be
                run.
            num_tokens: how many it has.
        """
        if reason is FinishReason.LENGTH:
            has_all = num_tokens >= self.max_tokens
            cut_by = "max_tokens" if has_all else "model_context_window_exceeded"
            return {"stop_reason": cut_by, "stop_sequence": None}
        if isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        has_called = bool(are_whole) and all(are_whole)
        return {"stop_reason": "tool_use" if has_called else "end_turn", "stop_sequence": None}


def tool_use(call_id: str, name: str, arguments: object) -> dict[str, Any]:
    """Returns the block of a call."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def usage_body(usage: Usage) -> dict[str, Any]:
    """Returns what an answer has cost: tokens that came from the prefix cache are counted apart
    from the others of the prompt."""
    body: dict[str, Any] = {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
    if usage.reasoning_tokens is not None:
        body["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return body
