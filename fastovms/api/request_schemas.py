"""Declares request bodies as typed structs. Types are strict, without coercion. Unknown fields are
ignored and named in a warning; `MEMBERS` has the known fields of inner objects.

`5.0` is not an integer and `true` is not a number (msgspec's strict rules). Integers are accepted
where numbers are expected. The allowed values of each field are in the table of `request_fields`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from msgspec import UNSET, Struct, UnsetType

from fastovms.api.unread import Members, known
from fastovms.params import SamplingFields
from fastovms.request_fields import INT64, UINT32_MAX, Field, Range

Uint32 = Annotated[int | None, Field(range=Range(0, UINT32_MAX))]
PositiveUint32 = Annotated[int | None, Field(range=Range(1, UINT32_MAX))]
Positive = Annotated[int | None, Field(range=Range(1))]
TopLogprobs = Annotated[int | None, Field(range=Range(high=UINT32_MAX))]
Truncation = Annotated[int | None, Field(range=Range(1, also=-1))]
Priority = Annotated[int | None, Field(range=Range(*INT64))]
MaxTokens = Annotated[int | UnsetType | None, Field(range=Range(0, UINT32_MAX))]
NotSupported = Field(neutral=())
"""The row of a field that the server does not act on. Any value would change the answer, so it is
refused rather than ignored."""


class StreamOptions(Struct, frozen=True, kw_only=True):
    """What a stream contains in addition to text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class ModelField(Struct, frozen=True, kw_only=True):
    """The field `model`, which every body for a model has."""

    MEMBERS: ClassVar[Members | None] = Members()

    model: str | None = None


class GenerationFields(SamplingFields, frozen=True, kw_only=True):
    """The fields that every generating endpoint shares. None = absent; fields that distinguish null
    from absent use `UNSET`."""

    model: str | None = None
    stream: bool | UnsetType | None = UNSET
    stream_options: dict[str, Any] | None = None
    n: Positive = None
    best_of: Positive = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool | None = None
    stop_in_reasoning: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None

    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: Uint32 = None

    use_beam_search: bool | None = None
    early_stopping: bool | str | None = None
    num_beam_groups: Positive = None
    diversity_penalty: Annotated[float | None, Field(range=Range(0, 100))] = None

    num_assistant_tokens: Uint32 = None
    assistant_confidence_threshold: Annotated[float | None, Field(range=Range(0, 1))] = None
    max_ngram_size: PositiveUint32 = None

    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_json_object: bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    json_schema: dict[str, Any] | str | None = None
    grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None

    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: Truncation = None
    truncation_side: str | None = None
    priority: Priority = None
    cache_salt: str | None = None
    request_id: str | None = None

    logprob_token_ids: list[int] | None = None
    thinking_token_budget: Annotated[
        int | None,
        Field(
            description="Ends reasoning after this number of tokens; -1 = without a limit.",
            range=Range(0, UINT32_MAX, also=-1),
        ),
    ] = None
    repetition_detection: dict[str, Any] | None = None
    stream_interval: Annotated[int | None, Field(range=Range(1), neutral=(1,))] = None
    kv_transfer_params: Annotated[dict[str, Any] | None, NotSupported] = None
    ec_transfer_params: Annotated[dict[str, Any] | None, NotSupported] = None
    vllm_xargs: dict[str, str | float | list[str | float]] | None = None
    session_id: str | None = None
    user: str | None = None


STREAM_OPTIONS: Final = known(*StreamOptions.__struct_fields__)
REPETITION_DETECTION: Final = known("max_pattern_size", "min_pattern_size", "min_count")
GENERATION_MEMBERS: Final = {
    "stream_options": STREAM_OPTIONS,
    "repetition_detection": REPETITION_DETECTION,
}
"""The members of inner objects of `GenerationFields`."""

_FUNCTION: Final = known("name", "description", "parameters", "strict")
_CUSTOM: Final = known("name", "description", "format")
_CALL: Final = known(
    "id",
    "type",
    "index",
    function=known("name", "arguments"),
    custom=known("name", "input"),
)
_PART: Final = known(
    "type",
    "text",
    "refusal",
    "thinking",
    "detail",
    "cache_control",
    "prompt_cache_breakpoint",
    "filename",
    "image",
    "input_audio",
    "audio_url",
    "video_url",
    image_url=known("url", "detail"),
    file=known("file_data", "file_id", "filename"),
)
_MESSAGE: Final = known(
    "role",
    "name",
    "tool_call_id",
    "refusal",
    "reasoning_content",
    "reasoning",
    "thinking",
    content=_PART,
    tool_calls=_CALL,
    function_call=known("name", "arguments"),
)
_TOOLS: Final = Members(
    kinds={
        "function": known("type", "cache_control", function=_FUNCTION),
        "custom": known("type", "cache_control", custom=_CUSTOM),
    }
)


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    """The body of `POST /completions`."""

    MEMBERS: ClassVar[Members] = Members(GENERATION_MEMBERS)

    prompt: str | list[str | int | list[int]] | None = None
    prompt_embeds: Annotated[Any, NotSupported] = None
    max_tokens: MaxTokens = UNSET
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    thinking_token_budget: Annotated[int | None, Field(neutral=(-1,))] = None


class ChatRequest(GenerationFields, frozen=True, kw_only=True):
    """The body of `POST /chat/completions`."""

    MEMBERS: ClassVar[Members] = Members(
        {
            **GENERATION_MEMBERS,
            "messages": _MESSAGE,
            "tools": _TOOLS,
            "functions": _FUNCTION,
            "prompt_cache_options": known("mode", "ttl"),
        }
    )

    messages: str | list[dict[str, Any]] | None = None
    max_tokens: MaxTokens = UNSET
    max_completion_tokens: PositiveUint32 = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs = None

    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    include_reasoning: bool | None = None
    echo: bool | None = None
    return_prompt_text: bool | None = None

    modalities: list[str] | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    verbosity: str | None = None
    prediction: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
