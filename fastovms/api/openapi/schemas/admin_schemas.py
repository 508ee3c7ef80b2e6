"""Declares errors, and the answers about models, tokens and the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import UNSET, UnsetType

from fastovms.api.openapi.schemas.generation_schemas import AnswerSchema
from fastovms.api.wire.error_forms import (
    ANTHROPIC_ERRORS,
    COHERE_ERRORS,
    OLLAMA_ERRORS,
    OPENAI_ERRORS,
    OVMS_ERRORS,
    ErrorForm,
)


class ErrorDetails(AnswerSchema, kw_only=True):
    """What is wrong, in OpenAI's form. `param` names the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(AnswerSchema, kw_only=True):
    """An error as OpenAI's clients read it."""

    error: ErrorDetails


class OvmsError(AnswerSchema, kw_only=True):
    """An error as OpenVINO Model Server has it: what is wrong, in words."""

    error: str


class OllamaError(AnswerSchema, kw_only=True):
    """An error as Ollama's clients read it."""

    error: str


class AnthropicErrorCode(AnswerSchema, kw_only=True):
    """Why, for programs."""

    error_code: str


class AnthropicErrorDetails(AnswerSchema, kw_only=True):
    """What is wrong, in Anthropic's form."""

    type: str
    message: str
    details: AnthropicErrorCode | UnsetType = UNSET


class AnthropicError(AnswerSchema, kw_only=True):
    """An error as Anthropic's clients read it."""

    type: Literal["error"]
    error: AnthropicErrorDetails
    request_id: str | None


class CohereError(AnswerSchema, kw_only=True):
    """An error as Cohere's clients read it: what is wrong, in words, and the id of the request."""

    message: str
    id: str | UnsetType = UNSET


ERRORS: Final[Mapping[ErrorForm, type]] = {
    OPENAI_ERRORS: OpenAIError,
    OVMS_ERRORS: OvmsError,
    OLLAMA_ERRORS: OllamaError,
    ANTHROPIC_ERRORS: AnthropicError,
    COHERE_ERRORS: CohereError,
}
"""The schemas of the forms of errors."""


class ModelPlace(AnswerSchema, kw_only=True):
    """Where a model is, in the form of llama.cpp's router; `reason` says why it could not be
    loaded."""

    value: Literal["unloaded", "loading", "loaded", "unloading"]
    failed: bool | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class ModelCard(AnswerSchema, kw_only=True):
    """Describes a model; below `/v1` with vLLM's members, and with what it is capable of:
    `completion`, `chat`, `tools`, `thinking`, `vision`."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str | UnsetType = UNSET
    parent: str | UnsetType | None = UNSET
    max_model_len: int | UnsetType = UNSET
    permission: list[Any] | UnsetType = UNSET
    capabilities: list[str] | UnsetType = UNSET
    status: ModelPlace | UnsetType = UNSET


class ModelList(AnswerSchema, kw_only=True):
    """The answer of `GET /models`; below `/v1` with what Codex and Ollama's clients read of each
    name in `models`."""

    object: Literal["list"]
    data: list[ModelCard]
    models: list[dict[str, Any]] | UnsetType = UNSET


class Tokens(AnswerSchema, kw_only=True):
    """The answer of vLLM's `POST /tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class OvmsTokens(AnswerSchema, kw_only=True):
    """The answer of OVMS's `POST /tokenize`: one list for one text, a list of lists for several."""

    tokens: list[int | list[int]]


class DetokenizedText(AnswerSchema, kw_only=True):
    """The answer of `POST /detokenize`."""

    prompt: str


class VersionStatusDetails(AnswerSchema, kw_only=True):
    """What is wrong with a model, if anything is."""

    error_code: str
    error_message: str


class VersionStatus(AnswerSchema, kw_only=True):
    """The status of a model's only version."""

    version: str
    state: Literal["LOADING", "AVAILABLE", "UNLOADING", "END"]
    status: VersionStatusDetails


class ModelStatus(AnswerSchema, kw_only=True):
    """The status of a model, in OVMS's form."""

    model_version_status: list[VersionStatus]


ServerConfigStatus = dict[str, ModelStatus]


class Work(AnswerSchema, kw_only=True):
    """A request, a background response or a batch that has not ended. `key` begins the SHA-256
    digest of its API key, and `detail` is its path, model or endpoint. What is `held` has a key
    that the server does not know."""

    object: Literal["work"]
    kind: Literal["request", "response", "batch"]
    id: str
    key: str | None
    status: str
    detail: str
    created_at: int | None


class WorkList(AnswerSchema, kw_only=True):
    """A page of the list of work."""

    object: Literal["list"]
    data: list[Work]
    first_id: str | None
    last_id: str | None
    has_more: bool


class CancelledWork(AnswerSchema, kw_only=True):
    """The work that was cancelled."""

    object: Literal["list"]
    data: list[Work]


"""The status of every model, by its name."""


class TensorMetadata(AnswerSchema, kw_only=True):
    """Describes a tensor, in KServe's form."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(AnswerSchema, kw_only=True):
    """Describes a model, in KServe's form."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class VersionAnswer(AnswerSchema, kw_only=True):
    """The answer of `GET /version`."""

    version: str


class ServerMetadata(AnswerSchema, kw_only=True):
    """Describes the server, in KServe's form."""

    name: str
    version: str
    extensions: list[str]
