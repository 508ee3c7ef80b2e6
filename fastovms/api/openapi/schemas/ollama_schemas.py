"""Declares the answers of Ollama's API: texts, whole and as lines of a stream, and models."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from fastovms.api.openapi.schemas.generation_schemas import AnswerSchema, TokenLogprob


class OllamaFunction(AnswerSchema, kw_only=True):
    """The function that a call is for, with its arguments as an object."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(AnswerSchema, kw_only=True):
    """A call of one of the client's tools. It is never told in pieces."""

    id: str
    function: OllamaFunction


class OllamaMessage(AnswerSchema, kw_only=True):
    """What the model says, thinks and calls."""

    role: Literal["assistant"]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaPart(AnswerSchema, kw_only=True):
    """What answers and lines of both endpoints have. The members behind `done` are in the last line
    and in whole answers; times are nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class OllamaChatAnswer(OllamaPart, kw_only=True):
    """The answer of `POST /api/chat`, and each line of its stream."""

    message: OllamaMessage


class OllamaGenerateAnswer(OllamaPart, kw_only=True):
    """The answer of `POST /api/generate`, and each line of its stream. `context` has the tokens of
    the prompt and of the answer."""

    response: str
    thinking: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET


class OllamaVectors(AnswerSchema, kw_only=True):
    """The answer of `POST /api/embed`."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaVector(AnswerSchema, kw_only=True):
    """The answer of `POST /api/embeddings`."""

    embedding: list[float]


class OllamaDetails(AnswerSchema, kw_only=True):
    """What kind of model it is."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(AnswerSchema, kw_only=True):
    """A model in a list. `size` is the memory that it takes, about."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    modified_at: str | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    size_vram: int | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class OllamaModelList(AnswerSchema, kw_only=True):
    """Some models."""

    models: list[OllamaModel]


class OllamaModelCard(AnswerSchema, kw_only=True):
    """All that is told of one model."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(AnswerSchema, kw_only=True):
    """The version of Ollama whose API this is."""

    version: str


class OllamaStatus(AnswerSchema, kw_only=True):
    """How a pull goes."""

    status: str
