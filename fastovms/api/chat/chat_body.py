"""Writes the body of a whole answer of `/chat/completions`: its choices, and what it tells of the
prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastovms.api.chat.call_forms import Call
from fastovms.api.chat.message_form import ChatMessageForm
from fastovms.api.generation.deltas import SampleDelta, Usage
from fastovms.api.generation.envelope import Envelope, closing_members
from fastovms.api.request.tokens.logprob_formats import chat_logprobs, prompt_logprobs_body
from fastovms.api.request.tokens.token_report import TokenReport
from fastovms.api.wire.dialect import Dialect
from fastovms.params import TokenLogprobs
from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    Reasoning,
)
from fastovms.text.tokens.tracking import TextToken

_VLLM_MEMBERS: Final = (
    "service_tier",
    "prompt_logprobs",
    "prompt_token_ids",
    "kv_transfer_params",
)
"""Members that vLLM's answers always have, null where there is nothing to tell."""


@dataclass(frozen=True, slots=True)
class ChatPromptReport:
    """What an answer tells about its prompt; None = nothing."""

    logprobs: Sequence[TokenLogprobs | None] | None = None
    token_ids: Sequence[int] | None = None
    text: str | None = None

    def members(self, report: TokenReport) -> dict[str, object]:
        members: dict[str, object] = {}
        if self.logprobs is not None and report.num_prompt_logprobs is not None:
            members["prompt_logprobs"] = prompt_logprobs_body(
                self.logprobs, report.num_prompt_logprobs, report.names
            )
        if self.token_ids is not None:
            members["prompt_token_ids"] = list(self.token_ids)
        if self.text is not None:
            members["prompt_text"] = self.text
        return members


def chat_body(
    envelope: Envelope,
    samples: Sequence[SampleDelta],
    prompt: ChatPromptReport,
    form: ChatMessageForm,
    report: TokenReport,
    usage: Usage,
) -> dict[str, object]:
    """Returns the unary answer. `samples` hold the whole texts, in order."""
    dialect = envelope.dialect
    choices = []
    for index, sample in enumerate(samples):
        pieces = [piece for piece in sample.pieces if form.shows(piece)]
        choice: dict[str, object] = {
            "index": index,
            "message": _message(pieces, form, dialect),
            "logprobs": _sample_logprobs(sample, form, report),
            "finish_reason": sample.finish_reason
            and form.finish_reason(sample.finish_reason, _are_whole(pieces), dialect),
        }
        if dialect.has_ids:
            choice["stop_reason"] = sample.stop_reason
            choice["token_ids"] = None
        if report.has_token_ids:
            choice["token_ids"] = [token.token_id for token in sample.tokens]
        choices.append(choice)
    return {
        **envelope.members("chat.completion"),
        "choices": choices,
        **(dict.fromkeys(_VLLM_MEMBERS) if dialect.has_ids else {}),
        **closing_members(usage),
        **prompt.members(report),
    }


def _are_whole(pieces: Iterable[Piece]) -> list[bool]:
    """Returns, for each call that ends in the pieces, whether it is whole."""
    return [piece.complete for piece in pieces if isinstance(piece, CallEnd)]


def _message(pieces: Iterable[Piece], form: ChatMessageForm, dialect: Dialect) -> dict[str, Any]:
    """Returns the message of a choice.

    Args:
        pieces: those that the client gets.
    """
    content, reasoning = [form.prefix], []
    calls: list[Call] = []
    for piece in pieces:
        match piece:
            case Content(text=text):
                content.append(text)
            case Reasoning(text=text):
                reasoning.append(text)
            case CallBegin(name=name):
                calls.append(Call(form.calls.target(name)))
            case CallArguments(text=text):
                calls[-1].texts.append(text)
            case CallEnd(complete=is_complete):
                if not is_complete and form.drops_cut_call:
                    calls.pop()
    text = "".join(content)
    is_plain = form.is_named and not form.calls.is_legacy
    is_silent = bool(calls) and dialect.has_null_content and not is_plain
    message: dict[str, Any] = {"role": form.role, "content": text or (None if is_silent else "")}
    if dialect.has_ids:
        message |= {"refusal": None, "annotations": [], "audio": None, "function_call": None}
        message |= dict.fromkeys(dialect.reasoning_members)
    if reasoning:
        message |= dict.fromkeys(dialect.reasoning_members, "".join(reasoning))
    if calls:
        message |= form.calls.members(calls)
    elif dialect.lists_no_calls:
        message["tool_calls"] = []
    return message


def _sample_logprobs(
    sample: SampleDelta, form: ChatMessageForm, report: TokenReport
) -> dict[str, object] | None:
    if report.num_logprobs is None:
        return None
    content = form.new_content_tokens()
    content.push(sample.parsed, sample.tokens)
    told: list[TextToken] = []
    for piece in sample.pieces:
        tokens = content.take(piece)
        if form.shows(piece):
            told += tokens
    return chat_logprobs_body([*told, *content.rest()], report)


def chat_logprobs_body(tokens: Sequence[TextToken], report: TokenReport) -> dict[str, object]:
    """Returns the `logprobs` of a choice."""
    assert report.num_logprobs is not None
    content = chat_logprobs(tokens, report.num_logprobs, report.names)
    return {"content": content, "refusal": None}
