"""Declares the request bodies of the Responses API."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from fastovms.api.wire.bodies.request_schemas import GenerationFields


class ResponsesRequest(GenerationFields, frozen=True, kw_only=True):
    """The body of `POST /responses`, and, as far as prompts go, of `POST
    /responses/input_tokens`."""

    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    truncation: str | None = None

    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None

    include: list[str] | None = None
    top_logprobs: int | None = None
    logprobs: bool | None = None

    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    modalities: Any = None


class ConversationRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /conversations`."""

    items: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None


class ConversationUpdate(Struct, frozen=True, kw_only=True):
    """The body of `POST /conversations/{id}`."""

    metadata: dict[str, Any] | UnsetType | None = UNSET


class ItemsRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /conversations/{id}/items`."""

    items: list[dict[str, Any]] | None = None
