"""Declares the answers of the Messages API: the message, its blocks, the events of its stream."""

from __future__ import annotations

from typing import Any, Final, Literal, Union

from fastovms.api.openapi.schemas.generation_schemas import AnswerSchema

StopWord = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class TextBlock(AnswerSchema, tag_field="type", tag="text", kw_only=True):
    """A text of the model."""

    text: str
    citations: None


class ThinkingBlock(AnswerSchema, tag_field="type", tag="thinking", kw_only=True):
    """What the model thought; the signature holds it where it is not shown."""

    thinking: str
    signature: str


class DirectCaller(AnswerSchema, kw_only=True):
    """Says that the model itself calls a tool."""

    type: Literal["direct"]


class ToolUseBlock(AnswerSchema, tag_field="type", tag="tool_use", kw_only=True):
    """A call of one of the client's tools."""

    id: str
    name: str
    input: dict[str, Any]
    caller: DirectCaller


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingTokens(AnswerSchema, kw_only=True):
    """Tells of an answer's tokens."""

    thinking_tokens: int


class EndingUsage(AnswerSchema, kw_only=True):
    """Counts the tokens of a request: `input_tokens` are those of the prompt that did not come from
    the prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens | None
    server_tool_use: None


class MessageUsage(EndingUsage, kw_only=True):
    """The same as a whole message has it."""

    cache_creation: None
    inference_geo: None
    service_tier: Literal["standard"]


class MessageAnswer(AnswerSchema, kw_only=True):
    """The answer of `POST /v1/messages`. As a stream begins, it is not known why it will end."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock]
    stop_reason: StopWord | None
    stop_sequence: str | None
    stop_details: None
    container: None
    usage: MessageUsage


class CountedTokens(AnswerSchema, kw_only=True):
    """The answer of `POST /v1/messages/count_tokens`."""

    input_tokens: int


# Events


class TextBlockDelta(AnswerSchema, tag_field="type", tag="text_delta", kw_only=True):
    """More of a text."""

    text: str


class ThinkingBlockDelta(AnswerSchema, tag_field="type", tag="thinking_delta", kw_only=True):
    """More of what the model thinks."""

    thinking: str


class SignatureDelta(AnswerSchema, tag_field="type", tag="signature_delta", kw_only=True):
    """The signature of thoughts, at their end."""

    signature: str


class InputJsonDelta(AnswerSchema, tag_field="type", tag="input_json_delta", kw_only=True):
    """More of the JSON text of a call's input."""

    partial_json: str


class MessageEnding(AnswerSchema, kw_only=True):
    """Why a message has ended."""

    stop_reason: StopWord
    stop_sequence: str | None
    stop_details: None
    container: None


class MessageStart(AnswerSchema, tag_field="type", tag="message_start", kw_only=True):
    """Begins a stream."""

    message: MessageAnswer


class ContentBlockStart(AnswerSchema, tag_field="type", tag="content_block_start", kw_only=True):
    """Begins a block."""

    index: int
    content_block: AnswerBlock


class ContentBlockDelta(AnswerSchema, tag_field="type", tag="content_block_delta", kw_only=True):
    """Goes on with a block."""

    index: int
    delta: TextBlockDelta | ThinkingBlockDelta | SignatureDelta | InputJsonDelta


class ContentBlockStop(AnswerSchema, tag_field="type", tag="content_block_stop", kw_only=True):
    """Ends a block."""

    index: int


class MessageDelta(AnswerSchema, tag_field="type", tag="message_delta", kw_only=True):
    """Says why the message ends, and what it has cost."""

    delta: MessageEnding
    usage: EndingUsage


class MessageStop(AnswerSchema, tag_field="type", tag="message_stop", kw_only=True):
    """Ends a stream."""


class Ping(AnswerSchema, tag_field="type", tag="ping", kw_only=True):
    """Says that the stream is alive."""


MESSAGE_EVENT: Final[Any] = Union[  # noqa: UP007
    MessageStart,
    ContentBlockStart,
    ContentBlockDelta,
    ContentBlockStop,
    MessageDelta,
    MessageStop,
    Ping,
]
"""Any event of a message's stream, but for errors."""
