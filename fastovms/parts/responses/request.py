"""The request bodies of the Responses API, and their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fastovms.api.body import one_of, optional, show, typed, wrong
from fastovms.api.dialect import Dialect
from fastovms.api.endpoint import check_id, read_metadata
from fastovms.api.fields import PromptCaching, is_streamed, prompt_caching
from fastovms.api.request_schemas import (
    GENERATION_MEMBERS,
    GenerationFields,
    PositiveUint32,
    TopLogprobs,
)
from fastovms.api.unread import Members, known
from fastovms.errors import InvalidField
from fastovms.parts.responses.input import Item

_PART: Final = known(
    "type",
    "text",
    "refusal",
    "annotations",
    "logprobs",
    "detail",
    "file_data",
    "file_id",
    "file_url",
    "filename",
    "prompt_cache_breakpoint",
    image_url=known("url", "detail"),
)
_ITEM: Final = ("id", "type", "status")
_MESSAGE: Final = known(*_ITEM, "role", "phase", content=_PART)
_CALL: Final = (*_ITEM, "call_id", "name", "namespace")
_OUTPUT: Final = known(*_ITEM, "call_id", output=_PART)
_ITEMS: Final = Members(
    kinds={
        "": _MESSAGE,
        "message": _MESSAGE,
        "function_call": known(*_CALL, "arguments"),
        "custom_tool_call": known(*_CALL, "input"),
        "function_call_output": _OUTPUT,
        "custom_tool_call_output": _OUTPUT,
        "reasoning": known(*_ITEM, "encrypted_content", content=_PART, summary=_PART),
        "compaction": known("id", "type", "encrypted_content"),
        "item_reference": known("id", "type"),
    }
)
_FUNCTION: Final = ("type", "name", "description", "parameters", "strict", "cache_control")
_CUSTOM: Final = ("type", "name", "description", "format")
_TOOL_KINDS: Final = {
    "function": known(*_FUNCTION, function=known(*_FUNCTION)),
    "custom": known(*_CUSTOM, custom=known(*_CUSTOM)),
}
_TOOLS: Final = Members(
    kinds={
        **_TOOL_KINDS,
        "namespace": known("type", "name", "description", tools=Members(kinds=_TOOL_KINDS)),
    }
)


class ResponsesRequest(GenerationFields, frozen=True, kw_only=True):
    """The body of `POST /responses` and of `POST /responses/input_tokens`, which uses only the
    fields of the prompt."""

    MEMBERS: ClassVar[Members] = Members(
        {
            **GENERATION_MEMBERS,
            "input": _ITEMS,
            "tools": _TOOLS,
            "text": known("format", "verbosity"),
            "reasoning": known("effort", "summary", "generate_summary"),
            "conversation": known("id"),
            "prompt_cache_options": known("mode", "ttl", "prewarm"),
            "background_options": known("completion_window", "continuation_id"),
            "context_management": known("type", "compact_threshold"),
        }
    )

    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    truncation: str | None = None

    max_output_tokens: PositiveUint32 = None
    max_tool_calls: PositiveUint32 = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None

    include: list[str] | None = None
    top_logprobs: TopLogprobs = None
    logprobs: bool | None = None

    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    background_options: dict[str, Any] | None = None
    context_management: list[dict[str, Any]] | None = None
    client_metadata: dict[str, Any] | None = None


class CreateMessage(ResponsesRequest, frozen=True, kw_only=True):
    """A `response.create` message on a WebSocket connection.

    Attributes:
        stream_id: repeated in each event of the response.
        generate: False = only the prompt is computed.
    """

    type: str | None = None
    stream_id: str | None = None
    generate: bool | None = None


class ConversationRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /conversations`."""

    MEMBERS: ClassVar[Members] = Members({"items": _ITEMS})

    items: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None


class ConversationUpdate(Struct, frozen=True, kw_only=True):
    """The body of `POST /conversations/{id}`."""

    MEMBERS: ClassVar[Members] = Members()

    metadata: dict[str, Any] | UnsetType | None = UNSET


class ItemsRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /conversations/{id}/items`."""

    MEMBERS: ClassVar[Members] = Members({"items": _ITEMS})

    items: list[dict[str, Any]] | None = None


LOGPROBS: Final = "message.output_text.logprobs"
SEALED_REASONING: Final = "reasoning.encrypted_content"
METRICS: Final = "metrics"
INCLUDES: Final = (
    LOGPROBS,
    SEALED_REASONING,
    METRICS,
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)

_TIERS: Final = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")
_TRUNCATIONS: Final = ("auto", "disabled")
_VERBOSITIES: Final = ("low", "medium", "high")
_SUMMARIES: Final = ("auto", "concise", "detailed")
_WINDOWS: Final = ("soonest", "2h", "8h")
_MAX_IDENTIFIER: Final = 64


@dataclass(frozen=True, slots=True)
class ResponseFields:
    """The checked options of a response.

    Attributes:
        store: whether the response can be retrieved later.
        truncates: whether the oldest items are dropped if they exceed the context.
        text: `text` as repeated in the response.
        response_format: the format of the answer, as in chats; None = free text.
        reasoning: `reasoning` as repeated in the response.
        logprobs: whether the log probabilities of tokens are reported.
        seals_reasoning: whether reasoning is also sent in `encrypted_content`.
        reports_metrics: whether the response reports its durations, regardless of the server's
            setting.
        caching: the request's options for the prefix cache.
        may_wait: whether a background response has the lowest priority.
        compact_threshold: the prompt tokens above which the history is compacted; 0 = three
            quarters of the context; None = never.
    """

    store: bool
    background: bool
    previous_id: str | None
    conversation_id: str | None
    truncates: bool
    metadata: Mapping[str, str]
    text: Mapping[str, Any]
    response_format: Mapping[str, Any] | None
    reasoning: Mapping[str, Any]
    service_tier: str
    logprobs: bool
    seals_reasoning: bool
    reports_metrics: bool
    caching: PromptCaching
    may_wait: bool
    compact_threshold: int | None


def read_fields(body: ResponsesRequest, dialect: Dialect, *, keeps: bool) -> ResponseFields:
    """Returns the options of a response. Raises InvalidField if a field is out of range, or fields
    contradict each other. `keeps` is whether the server stores responses."""
    _check_supported(body, dialect)
    previous_id = body.previous_response_id
    if previous_id is not None and body.conversation is not None:
        raise InvalidField.about(
            "conversation",
            "cannot be used with previous_response_id: both name the earlier conversation",
        )
    store = keeps and body.store is not False
    if body.background and not store:
        reason = (
            "when store is false" if keeps else "on this server, which does not store responses"
        )
        raise InvalidField.about("background", f"cannot be used {reason}")
    include = check_include(body.include or ())
    text, response_format = _text_options(body, dialect)
    caching = prompt_caching(body.prompt_cache_options, body.prompt_cache_retention)
    if caching.prewarms and body.background:
        raise InvalidField.about("prompt_cache_options.prewarm", "cannot be used with background")
    return ResponseFields(
        store=store,
        background=body.background is True,
        previous_id=None if previous_id is None else check_id(previous_id, "previous_response_id"),
        conversation_id=_conversation_id(body.conversation),
        truncates=_choice(body.truncation, "truncation", _TRUNCATIONS, "disabled") == "auto",
        metadata=read_metadata(body.metadata),
        text=text,
        response_format=response_format,
        reasoning=_reasoning_options(body.reasoning, dialect),
        service_tier=_choice(body.service_tier, "service_tier", _TIERS, "default"),
        logprobs=LOGPROBS in include,
        seals_reasoning=SEALED_REASONING in include,
        reports_metrics=METRICS in include,
        caching=caching,
        may_wait=_may_wait(body),
        compact_threshold=_compact_threshold(body.context_management),
    )


def _may_wait(body: ResponsesRequest) -> bool:
    """Returns whether `background_options` allow hours for the response. Raises InvalidField if
    they are invalid."""
    given, name = body.background_options or {}, "background_options.completion_window"
    optional(given.get("continuation_id"), str, "background_options.continuation_id")
    window = _choice(given.get("completion_window"), name, _WINDOWS, _WINDOWS[0])
    if window == _WINDOWS[0]:
        return False
    if not body.background or is_streamed(body):
        raise InvalidField.about(
            name, f"{show(window)} is only allowed when background is true and stream is not"
        )
    return True


def _compact_threshold(given: Sequence[Mapping[str, Any]] | None) -> int | None:
    """Returns the threshold in `context_management`, as described at
    `ResponseFields.compact_threshold`. Raises InvalidField if an entry is invalid."""
    thresholds = []
    for position, entry in enumerate(given or ()):
        place = f"context_management[{position}]"
        one_of(entry.get("type"), ("compaction",), f"{place}.type")
        threshold = entry.get("compact_threshold")
        if threshold is not None and (type(threshold) is not int or threshold < 1):
            raise wrong(f"{place}.compact_threshold", "an integer of at least 1", threshold)
        thresholds.append(threshold or 0)
    return min(thresholds, default=None)


def with_configuration(body: ResponsesRequest, items: Sequence[Item]) -> ResponsesRequest:
    """Returns the request with the tools and settings of configuration items in its history. The
    last value of a setting applies."""
    tools, reasoning, text = [*(body.tools or ())], body.reasoning or {}, body.text or {}
    changed: dict[str, Any] = {}
    for item in items:
        match item["type"]:
            case "additional_tools" | "tool_search_output":
                tools += item["tools"]
                changed["tools"] = tools
            case "configuration_update":
                if "reasoning" in item:
                    changed["reasoning"] = reasoning = {**reasoning, **item["reasoning"]}
                if "text" in item:
                    changed["text"] = text = {**text, **item["text"]}
    return msgspec.structs.replace(body, **changed) if changed else body


def _check_supported(body: ResponsesRequest, dialect: Dialect) -> None:
    if body.prompt is not None:
        raise InvalidField.about(
            "prompt", "is not supported: this server does not store prompt templates"
        )
    if body.stream_options is not None and not dialect.responses.takes_stream_options:
        raise InvalidField.about("stream_options", "is not allowed for responses")
    if is_streamed(body):
        if (body.n or 1) > 1:
            raise InvalidField.about("n", f"must be 1 when stream is true, not {body.n}")
        if body.logprobs and not dialect.responses.takes_logprobs_field:
            raise InvalidField.about("logprobs", "must be false when stream is true")
    if body.background and (body.n or 1) > 1:
        raise InvalidField.about("n", f"must be 1 when background is true, not {body.n}")
    for name in ("safety_identifier", "prompt_cache_key"):
        value: str | None = getattr(body, name)
        if value is not None and len(value) > _MAX_IDENTIFIER:
            raise InvalidField.about(
                name, f"must have at most {_MAX_IDENTIFIER} characters, not {len(value)}"
            )


def _choice(value: object, name: str, allowed: tuple[str, ...], default: str) -> str:
    return default if value is None else one_of(value, allowed, name)


def check_include(given: Sequence[str]) -> Sequence[str]:
    """Raises InvalidField for values of `include` that are neither OpenAI's nor "metrics"."""
    for position, value in enumerate(given):
        one_of(value, INCLUDES, f"include[{position}]")
    return given


def _conversation_id(given: str | Mapping[str, Any] | None) -> str | None:
    if given is None:
        return None
    if isinstance(given, str):
        return check_id(given, "conversation")
    conversation_id = typed(given.get("id"), str, "conversation.id")
    return check_id(conversation_id, "conversation.id")


def _reasoning_options(given: Mapping[str, Any] | None, dialect: Dialect) -> dict[str, Any]:
    given = given or {}
    echoed: dict[str, Any] = {"effort": None, "summary": None}
    if given.get("effort") is not None:
        echoed["effort"] = one_of(given["effort"], dialect.responses.efforts, "reasoning.effort")
    for member in ("summary", "generate_summary"):
        if given.get(member) is not None:
            echoed["summary"] = one_of(given[member], _SUMMARIES, f"reasoning.{member}")
            break
    return echoed


def _text_options(
    body: ResponsesRequest, dialect: Dialect
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Returns `text` as repeated in the response, and the answer's format in Chat Completions'
    form."""
    given = body.text or {}
    echoed: dict[str, Any] = {"format": {"type": "text"}}
    if given.get("verbosity") is not None:
        echoed["verbosity"] = one_of(given["verbosity"], _VERBOSITIES, "text.verbosity")
    if body.response_format is not None and dialect.responses.echoes_response_format:
        echoed["format"] = _flat(body.response_format)
    form = given.get("format")
    if form is None:
        return echoed, None
    form = typed(form, dict, "text.format")
    kind = _choice(form.get("type"), "text.format.type", ("text", "json_object", "json_schema"), "")
    if not kind:
        raise InvalidField.about("text.format.type", "is required")
    if kind == "text":
        return echoed, None
    if body.response_format is not None:
        raise InvalidField.about("response_format", "and text.format cannot be used together")
    if kind == "json_object":
        echoed["format"] = {"type": kind}
        return echoed, echoed["format"]
    members = {key: value for key, value in form.items() if key != "type"}
    response_format = {"type": kind, "json_schema": members}
    echoed["format"] = _flat(response_format)
    return echoed, response_format


def _flat(response_format: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a format from Chat Completions' form to that of `text.format`."""
    members = response_format.get("json_schema")
    if not isinstance(members, dict):
        return dict(response_format)
    return {
        "type": response_format.get("type"),
        "name": members.get("name"),
        "description": members.get("description"),
        "schema": members.get("schema"),
        "strict": members.get("strict") is True,
    }
