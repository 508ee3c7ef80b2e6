"""The bodies of the server's requests and answers as pydantic models, for the peer that
`bench.http requests` measures. Requests get the fields, types and ranges of the server's own."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, get_args, get_type_hints

from msgspec import Struct, UnsetType
from pydantic import BaseModel, ConfigDict, Field, create_model

from fastovms.request_fields import Range, ranges_of


class StrictBody(BaseModel):
    """What a client sends: nothing is coerced, unknown members are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


class StreamOptionsBody(StrictBody):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class MessagePart(StrictBody):
    type: Literal["text"]
    text: str


class Message(StrictBody):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[MessagePart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


_NESTED = {
    "stream_options": StreamOptionsBody | None,
    "messages": str | list[Message] | None,
}
"""What the server checks by hand."""


def pydantic_model(struct: type[Struct]) -> type[BaseModel]:
    """Returns a model of the same fields, all of which may be absent."""
    fields: dict[str, Any] = {}
    ranges = ranges_of(struct, "openai")
    hints = get_type_hints(struct)
    for name in struct.__struct_fields__:
        hint = hints[name]
        kinds = [kind for kind in get_args(hint) if kind is not UnsetType]
        if name in _NESTED:
            fields[name] = (_NESTED[name], None)
        elif name in ranges:
            fields[name] = (_ranged(kinds[0], ranges[name]), None)
        else:
            fields[name] = (reduce(or_, kinds) if kinds else hint, None)
    return create_model(struct.__name__, __base__=StrictBody, **fields)


def _ranged(kind: Any, allowed: Range) -> Any:
    bounds: dict[str, float] = {}
    if allowed.low is not None:
        bounds["gt" if allowed.low_open else "ge"] = allowed.low
    if allowed.high is not None:
        bounds["lt" if allowed.high_open else "le"] = allowed.high
    within = Annotated[kind, Field(**bounds)] | None
    return within if allowed.also is None else within | Literal[allowed.also]


class CachedTokens(BaseModel):
    cached_tokens: int


class ReasoningTokens(BaseModel):
    reasoning_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens | None = None


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: None
    finish_reason: str | None
    stop_reason: int | str | None


class ChatMessage(BaseModel):
    role: str
    content: str
    refusal: None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: None
    finish_reason: str | None
    stop_reason: int | str | None


class ChatDelta(BaseModel):
    role: str | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    logprobs: None
    finish_reason: str | None
    stop_reason: int | str | None = None


class Envelope(BaseModel):
    """What every answer and every event of one repeats."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class Completion(Envelope):
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(Envelope):
    choices: list[CompletionChoice]


class ChatCompletion(Envelope):
    choices: list[ChatChoice]
    usage: Usage


class ChatChunk(Envelope):
    choices: list[ChatChunkChoice]
