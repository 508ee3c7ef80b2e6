"""Declares the request body of the Messages API."""

from __future__ import annotations

from typing import Any

from fastovms.api.wire.bodies.request_schemas import GenerationFields


class MessagesRequest(GenerationFields, frozen=True, kw_only=True):
    """The body of `POST /messages`. The fields of the server's other endpoints are there too, for
    those who set them beside Anthropic's."""

    messages: list[dict[str, Any]] | None = None
    system: str | list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None

    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    inference_geo: str | None = None
    speed: str | None = None
    diagnostics: dict[str, Any] | None = None

    mcp_servers: list[Any] | None = None
    container: Any = None
    thread: dict[str, Any] | None = None
    compaction: dict[str, Any] | None = None


class CountTokensRequest(MessagesRequest, frozen=True, kw_only=True):
    """The body of `POST /messages/count_tokens`: of the same fields, those of the prompt count."""
