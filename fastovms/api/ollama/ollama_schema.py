"""Declares the request bodies of Ollama's API, and the form in which the pipeline takes what they
ask for."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from fastovms.api.wire.request_schemas import GenerationFields, ModelField

Whole = int | float
"""An integer, which Ollama takes as 5.0, too."""


class OllamaOptions(Struct, frozen=True, kw_only=True):
    """What `options` may hold. Those behind `stop` say how Ollama loads a model, or are of samplers
    that few have."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    min_p: float | None = None
    seed: Whole | None = None
    num_predict: Whole | None = None
    num_ctx: Whole | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Whole | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | list[str] | None = None

    typical_p: float | None = None
    tfs_z: float | None = None
    mirostat: Whole | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    penalize_newline: bool | None = None
    num_keep: Whole | None = None
    num_batch: Whole | None = None
    num_gpu: Whole | None = None
    main_gpu: Whole | None = None
    num_thread: Whole | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None


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


class AskedFields(GenerationFields, frozen=True, kw_only=True):
    """What a request asks for, in the fields of the other endpoints, and its texts, so that faults
    in them can be named."""

    messages: Any = None
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
