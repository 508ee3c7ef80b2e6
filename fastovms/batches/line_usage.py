"""Adds up the tokens that the answers of a batch tell of."""

from __future__ import annotations

from typing import Final

import msgspec

from fastovms.batches.batch_line import NOT_JSON

_LONG: Final = 64 * 1024
_END: Final = 8 * 1024
"""Bytes from which an answer has no more read of it than its end, where its usage mostly is, and
how many these are: a decoder has the GIL for all of what it reads, vectors included."""

_MEMBER: Final = b',"usage":'


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    thinking_tokens: int | None = None


class AnswerUsage(msgspec.Struct, frozen=True):
    """The usage of one answer, as chats, as responses or as Anthropic's messages name it.

    Attributes:
        cache_creation_input_tokens, cache_read_input_tokens: come on top of `input_tokens`.
    """

    prompt_tokens: int | None = None
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class AnswerBody(msgspec.Struct, frozen=True):
    """What is read of an answer."""

    usage: AnswerUsage | None = None


class BatchUsage(msgspec.Struct):
    """The tokens of all answers so far."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def add(self, usage: AnswerUsage | None) -> None:
        if usage is None:
            return
        of_input = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
        of_output = usage.completion_tokens_details or usage.output_tokens_details or _Details()
        read = usage.cache_read_input_tokens or 0
        self.input_tokens += usage.prompt_tokens or usage.input_tokens or 0
        self.input_tokens += read + (usage.cache_creation_input_tokens or 0)
        self.output_tokens += usage.completion_tokens or usage.output_tokens or 0
        self.cached_tokens += of_input.cached_tokens or read
        self.reasoning_tokens += of_output.reasoning_tokens or of_output.thinking_tokens or 0


def usage_of(body: bytes) -> AnswerUsage | None:
    """Returns the usage that the body of an answer tells of; None = it tells of none."""
    found = _usage_at_end(body) if len(body) > _LONG else None
    if found is not None:
        return found
    try:
        return msgspec.json.decode(body, type=AnswerBody).usage
    except NOT_JSON:
        return None


def _usage_at_end(body: bytes) -> AnswerUsage | None:
    """Returns the usage where it begins near the end; None = it may be anywhere.

    A quote behind a comma can only begin a member: texts have theirs escaped. It is the body's own
    where what follows closes one object, and no more.
    """
    end = body[-_END:]
    at = end.rfind(_MEMBER)
    while at >= 0:
        try:
            return msgspec.json.decode(b"{" + end[at + 1 :], type=AnswerBody).usage
        except NOT_JSON:
            at = end.rfind(_MEMBER, 0, at)
    return None
