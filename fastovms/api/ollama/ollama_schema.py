"""Declares the request bodies of Ollama's API, and the form in which the pipeline takes what they
ask for."""

from __future__ import annotations

from typing import Any

from fastovms.api.request.ollama_values import OllamaOptions
from fastovms.api.wire.bodies.request_schemas import GenerationFields, ModelField


class OllamaTextFields(ModelField, frozen=True, kw_only=True):
    """The fields that both endpoints which generate share."""

    stream: bool | None = None
    options: OllamaOptions | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None
    shift: bool | None = None
    keep_alive: str | int | float | None = None


class OllamaChatRequest(OllamaTextFields, frozen=True, kw_only=True):
    """The body of `POST /api/chat`."""

    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateRequest(OllamaTextFields, frozen=True, kw_only=True):
    """The body of `POST /api/generate`."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    images: list[str] | None = None
    context: list[int] | None = None


class OllamaNamed(ModelField, frozen=True, kw_only=True):
    """The body of what is asked about one model; `name` is what older clients call it."""

    name: str | None = None
    stream: bool | None = None
    verbose: bool | None = None


class AskedFields(GenerationFields, frozen=True, kw_only=True):
    """What a request asks for, in the fields of the other endpoints, and its texts, so that faults
    in them can be named."""

    messages: Any = None
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
