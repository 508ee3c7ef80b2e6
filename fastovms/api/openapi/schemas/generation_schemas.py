"""Declares the answers of `/completions` and `/chat/completions`, whole and as frames of a
stream."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

FinishWord = Literal["stop", "length", "tool_calls", "function_call", "content_filter"]


class AnswerSchema(Struct, forbid_unknown_fields=True):
    """The base of all types of answers, which have no other members than those they declare.
    Members that are not always there are `UNSET` by default."""


class CachedTokens(AnswerSchema, kw_only=True):
    """Tells of a prompt's tokens."""

    cached_tokens: int


class ReasoningTokens(AnswerSchema, kw_only=True):
    """Tells of an answer's tokens."""

    reasoning_tokens: int


class TokenUsage(AnswerSchema, kw_only=True):
    """Counts the tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens | UnsetType = UNSET


class RequestMetrics(AnswerSchema, kw_only=True):
    """How long an answer took, in vLLM's form; with `--enable-per-request-metrics` only."""

    time_to_first_token_ms: float
    generation_time_ms: float
    queue_time_ms: float
    mean_itl_ms: float | None
    tokens_per_second: float | None


class PromptLogprob(AnswerSchema, kw_only=True):
    """The log probability of a token of the prompt, in vLLM's form."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""Log probabilities by token id, for each token of the prompt; null for the first one."""


class CompletionLogprobs(AnswerSchema, kw_only=True):
    """Parallel arrays with an entry for each token; null where nothing is known of a token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(AnswerSchema, kw_only=True):
    """One sample of one prompt, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | UnsetType | None = UNSET
    finish_reason: FinishWord | None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET


class Completion(AnswerSchema, kw_only=True):
    """The answer of `POST /completions`. Below `/v3` it has no `id`, as in OVMS."""

    id: str | UnsetType = UNSET
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | UnsetType = UNSET
    choices: list[CompletionChoice]
    service_tier: UnsetType | None = UNSET
    kv_transfer_params: UnsetType | None = UNSET
    usage: TokenUsage
    metrics: RequestMetrics | UnsetType = UNSET


class CompletionChunk(AnswerSchema, kw_only=True):
    """A frame of a streamed completion. `usage` is in those of a request that asks for it."""

    id: str | UnsetType = UNSET
    object: Literal["text_completion", "text_completion.chunk"]
    created: int
    model: str
    system_fingerprint: str | UnsetType = UNSET
    choices: list[CompletionChoice]
    usage: TokenUsage | UnsetType | None = UNSET
    metrics: RequestMetrics | UnsetType = UNSET


class TopLogprob(AnswerSchema, kw_only=True):
    """A token that might have stood in a token's place."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, kw_only=True):
    """A token, and the likeliest ones of its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(AnswerSchema, kw_only=True):
    """The log probabilities of a message's tokens."""

    content: list[TokenLogprob] | None
    refusal: None


class CalledFunction(AnswerSchema, kw_only=True):
    """The function that a call is for. In a stream, arguments come in pieces."""

    name: str | UnsetType = UNSET
    arguments: str


class CalledCustomTool(AnswerSchema, kw_only=True):
    """The tool of free text that a call is for. In a stream, the input comes in pieces."""

    name: str | UnsetType = UNSET
    input: str


class ToolCall(AnswerSchema, kw_only=True):
    """A call of one of the client's tools."""

    id: str
    type: Literal["function", "custom"]
    function: CalledFunction | UnsetType = UNSET
    custom: CalledCustomTool | UnsetType = UNSET


class ToolCallDelta(AnswerSchema, kw_only=True):
    """A piece of a call. Its first one has the id and the name."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: CalledFunction | UnsetType = UNSET
    custom: CalledCustomTool | UnsetType = UNSET


class ChatMessage(AnswerSchema, kw_only=True):
    """What the model says, thinks and calls. Reasoning has two names below `/v1`: clients read one
    or the other."""

    role: str
    content: str | None
    refusal: str | UnsetType | None = UNSET
    annotations: list[Any] | UnsetType = UNSET
    audio: UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType | None = UNSET


class ChatDelta(AnswerSchema, kw_only=True):
    """A piece of a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChatChoice(AnswerSchema, kw_only=True):
    """One sample of an answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishWord | None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET


class ChatChunkChoice(AnswerSchema, kw_only=True):
    """A piece of one sample."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | UnsetType | None = UNSET
    finish_reason: FinishWord | None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(AnswerSchema, kw_only=True):
    """The answer of `POST /chat/completions`. Below `/v3` it has no `id`, as in OVMS."""

    id: str | UnsetType = UNSET
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str | UnsetType = UNSET
    choices: list[ChatChoice]
    service_tier: UnsetType | None = UNSET
    kv_transfer_params: UnsetType | None = UNSET
    usage: TokenUsage
    metrics: RequestMetrics | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_text: str | UnsetType = UNSET


class ChatCompletionChunk(AnswerSchema, kw_only=True):
    """A frame of a streamed chat. `usage` is in those of a request that asks for it."""

    id: str | UnsetType = UNSET
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str | UnsetType = UNSET
    choices: list[ChatChunkChoice]
    usage: TokenUsage | UnsetType | None = UNSET
    metrics: RequestMetrics | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
