"""Says how an answer is told in Anthropic's form: its blocks, why it ended and what it has cost."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastovms.api.conversation.sealed_text import seal
from fastovms.api.conversation.shown_pieces import ShownPieces
from fastovms.api.generation.deltas import Usage
from fastovms.params import FinishReason

SERVICE_TIER: Final = "standard"


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
        """Returns why an answer has ended, with the members that have no meaning here as null.

        Args:
            stop: the stop string, or the id of the token, that has ended it.
            are_whole: whether each of its calls is: those of an answer that was cut must not be
                run.
            num_tokens: how many it has.
        """
        if reason is FinishReason.LENGTH:
            has_all = num_tokens >= self.max_tokens
            return ending("max_tokens" if has_all else "model_context_window_exceeded")
        if isinstance(stop, str):
            return ending("stop_sequence", stop)
        has_called = bool(are_whole) and all(are_whole)
        return ending("tool_use" if has_called else "end_turn")


def ending(reason: str | None, stop_sequence: str | None = None) -> dict[str, str | None]:
    """Returns the members that say why an answer has ended; None = it has not."""
    members = {"stop_reason": reason, "stop_sequence": stop_sequence}
    return {**members, "stop_details": None, "container": None}


def text_block(text: str) -> dict[str, Any]:
    """Returns the block of a text."""
    return {"type": "text", "text": text, "citations": None}


def tool_use(call_id: str, name: str, arguments: object) -> dict[str, Any]:
    """Returns the block of a call."""
    block = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
    return {**block, "caller": {"type": "direct"}}


def usage_body(usage: Usage) -> dict[str, Any]:
    """Returns the tokens of an answer: those that came from the prefix cache are counted apart from
    the others of the prompt."""
    reasoning = usage.reasoning_tokens
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": None if reasoning is None else {"thinking_tokens": reasoning},
        "server_tool_use": None,
    }


def message_usage(usage: Usage) -> dict[str, Any]:
    """Returns the tokens as a message has them, which says more than the end of a stream."""
    more = {"cache_creation": None, "inference_geo": None, "service_tier": SERVICE_TIER}
    return {**usage_body(usage), **more}
