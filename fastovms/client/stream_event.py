"""Reads the events of streams of `/completions` and `/chat/completions`: what of them a client that
measures or shows the text needs."""

from __future__ import annotations

from typing import Final

import msgspec

from fastovms.client.request_failed import RequestFailed, error_text


class FunctionPart(msgspec.Struct):
    """A part of a call: its function's name, or more of its arguments."""

    name: str | None = None
    arguments: str | None = None


class CallPart(msgspec.Struct):
    """What an event adds to the call of that index."""

    index: int = 0
    id: str | None = None
    function: FunctionPart = msgspec.field(default_factory=FunctionPart)


class MessagePart(msgspec.Struct):
    """What an event adds to the message. vLLM has called thoughts `reasoning_content` and then
    `reasoning`; servers write either."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[CallPart] | None = None

    @property
    def thought(self) -> str | None:
        return self.reasoning or self.reasoning_content


class StreamedChoice(msgspec.Struct):
    """What an event adds to one text."""

    text: str | None = None
    delta: MessagePart | None = None
    finish_reason: str | None = None

    @property
    def brings_output(self) -> bool:
        """Whether the model has made it: a chat begins with an event that names the role alone, and
        either stream may end with one that has the reason only."""
        part = self.delta
        if part is None:
            return bool(self.text) or self.finish_reason is None
        return bool(
            part.content
            or part.reasoning
            or part.reasoning_content
            or part.tool_calls
            or part.refusal
        )


class TokenCounts(msgspec.Struct):
    """How many tokens a request had, as the server counts them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class StreamEvent(msgspec.Struct):
    """One event of a stream."""

    choices: list[StreamedChoice] = []
    usage: TokenCounts | None = None
    error: object = None


_DECODER: Final = msgspec.json.Decoder(StreamEvent)


def read_event(data: bytes) -> StreamEvent:
    """Returns the event that has this data.

    Raises:
        RequestFailed: it tells of an error, or is none of these APIs.
    """
    try:
        event = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestFailed("protocol error", f"an event of the stream: {error}") from None
    if event.error is not None:
        raise RequestFailed("error in the stream", error_text(event.error))
    return event
