"""Adds up the tokens that the answers of a batch tell of."""

from __future__ import annotations

import msgspec

from fastovms.batches.batch_line import NOT_JSON


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class AnswerUsage(msgspec.Struct, frozen=True):
    """The usage of one answer, as chats or as responses name it."""

    prompt_tokens: int | None = None
    input_tokens: int | None = None
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
        self.input_tokens += usage.prompt_tokens or usage.input_tokens or 0
        self.output_tokens += usage.completion_tokens or usage.output_tokens or 0
        self.cached_tokens += of_input.cached_tokens or 0
        self.reasoning_tokens += of_output.reasoning_tokens or 0


def usage_of(body: bytes) -> AnswerUsage | None:
    """Returns the usage that the body of an answer tells of; None = it tells of none."""
    try:
        return msgspec.json.decode(body, type=AnswerBody).usage
    except NOT_JSON:
        return None
