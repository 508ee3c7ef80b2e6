"""Schemas of administration, batches, embeddings and Ollama's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import UNSET, UnsetType

from fastovms.api.answer import AnswerSchema
from fastovms.api.dialect import (
    ANTHROPIC_ERRORS,
    COHERE_ERRORS,
    OLLAMA_ERRORS,
    OPENAI_ERRORS,
    OVMS_ERRORS,
    ErrorForm,
)
from fastovms.api.openapi.schemas import TokenLogprob

# Declares errors, and the answers about models, tokens and the server.


class ErrorDetails(AnswerSchema, kw_only=True):
    """An error in OpenAI's form. `param` names the faulty field."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(AnswerSchema, kw_only=True):
    """An error as OpenAI's clients read it."""

    error: ErrorDetails


class OvmsError(AnswerSchema, kw_only=True):
    """An error in OpenVINO Model Server's form: only a message."""

    error: str


class OllamaError(AnswerSchema, kw_only=True):
    """An error as Ollama's clients read it."""

    error: str


class AnthropicErrorCode(AnswerSchema, kw_only=True):
    """Why, for programs."""

    error_code: str


class AnthropicErrorDetails(AnswerSchema, kw_only=True):
    """An error in Anthropic's form."""

    type: str
    message: str
    details: AnthropicErrorCode | UnsetType = UNSET


class AnthropicError(AnswerSchema, kw_only=True):
    """An error as Anthropic's clients read it."""

    type: Literal["error"]
    error: AnthropicErrorDetails
    request_id: str | None


class CohereError(AnswerSchema, kw_only=True):
    """An error as Cohere's clients read it: a message and the id of the request."""

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
    """The state of a model, in the form of llama.cpp's router; `reason` is why it could not be
    loaded."""

    value: Literal["unloaded", "loading", "loaded", "unloading"]
    failed: bool | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class ModelCard(AnswerSchema, kw_only=True):
    """Describes a model; below `/v1` with vLLM's members and its capabilities: `completion`,
    `chat`, `tools`, `thinking`, `vision`."""

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
    """The answer of `GET /models`; below `/v1`, `models` has an entry per name for Codex and
    Ollama's clients."""

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
    """The error of a model, if it has one."""

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
    """A request, a background response or a batch that is running. `key` is the beginning of the
    SHA-256 digest of its API key; empty without a key. `detail` is its path, model or endpoint."""

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


# Declares the answers about files and batches.


class FileForm(AnswerSchema, kw_only=True):
    """The form of an upload: `file` is a part with a file name."""

    file: str
    purpose: str


class FileObject(AnswerSchema, kw_only=True):
    """Describes a file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: None


class FileList(AnswerSchema, kw_only=True):
    """A page of the list of files."""

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(AnswerSchema, kw_only=True):
    """The answer of `DELETE /files/{id}`."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchLineError(AnswerSchema, kw_only=True):
    """An error in the input of a batch, and its line."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(AnswerSchema, kw_only=True):
    """The errors in the input of a batch, at most 100."""

    object: Literal["list"]
    data: list[BatchLineError]


class BatchCounts(AnswerSchema, kw_only=True):
    """The numbers of requests of a batch by outcome so far."""

    total: int
    completed: int
    failed: int


class BatchCachedTokens(AnswerSchema, kw_only=True):
    """The number of tokens of the prompts that were in the cache."""

    cached_tokens: int


class BatchReasoningTokens(AnswerSchema, kw_only=True):
    """The number of tokens of the answers that are reasoning."""

    reasoning_tokens: int


class BatchTokens(AnswerSchema, kw_only=True):
    """The tokens of all requests that were answered."""

    input_tokens: int
    input_tokens_details: BatchCachedTokens
    output_tokens: int
    output_tokens_details: BatchReasoningTokens
    total_tokens: int


class BatchObject(AnswerSchema, kw_only=True):
    """A batch: its status and its output files."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating",
        "failed",
        "in_progress",
        "finalizing",
        "completed",
        "expired",
        "cancelling",
        "cancelled",
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: BatchTokens
    metadata: dict[str, str] | None


class BatchList(AnswerSchema, kw_only=True):
    """A page of the list of batches."""

    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


# Declares the answers of `/embeddings`, `/rerank` and `/score`.


class EncodingUsage(AnswerSchema, kw_only=True):
    """The tokens of all texts of a request."""

    prompt_tokens: int
    total_tokens: int


class Embedding(AnswerSchema, kw_only=True):
    """The vector of one text: numbers, or base64 of the float32 bytes."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(AnswerSchema, kw_only=True):
    """The answer of `/embeddings`; below `/v1` with vLLM's members."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EncodingUsage
    id: str | UnsetType = UNSET
    created: int | UnsetType = UNSET


class RerankedDocument(AnswerSchema, kw_only=True):
    """A document as it was sent."""

    text: str


class RerankResult(AnswerSchema, kw_only=True):
    """The index of a document in the request, and its relevance score."""

    index: int
    relevance_score: float
    document: RerankedDocument | UnsetType = UNSET


class ApiVersion(AnswerSchema, kw_only=True):
    """The version of Cohere's API in which an answer is."""

    version: str


class RerankedTokens(AnswerSchema, kw_only=True):
    """The tokens of all pairs of a request."""

    input_tokens: int


class RerankMeta(AnswerSchema, kw_only=True):
    """Cohere's members in addition to the results."""

    api_version: ApiVersion
    tokens: RerankedTokens


class RerankAnswer(AnswerSchema, kw_only=True):
    """The answer of `/rerank`, the best first; below `/v1` with vLLM's members, at `/v2/rerank`
    with those and Cohere's `meta`."""

    results: list[RerankResult]
    id: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    usage: EncodingUsage | UnsetType = UNSET
    meta: RerankMeta | UnsetType = UNSET


class Score(AnswerSchema, kw_only=True):
    """The score of a pair of texts."""

    index: int
    object: Literal["score"]
    score: float


class ScoreList(AnswerSchema, kw_only=True):
    """The answer of `/score`."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: EncodingUsage


# Declares the answers of Ollama's API: texts, whole and as lines of a stream, and models.


class OllamaFunction(AnswerSchema, kw_only=True):
    """The called function, with its arguments as an object."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(AnswerSchema, kw_only=True):
    """A call of one of the client's tools. It is always sent whole."""

    id: str
    function: OllamaFunction


class OllamaMessage(AnswerSchema, kw_only=True):
    """The text, reasoning and calls of the model."""

    role: Literal["assistant"]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaPart(AnswerSchema, kw_only=True):
    """The members of answers and lines of both endpoints. The members after `done` are in the last
    line and in whole answers; times are nanoseconds."""

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
    """The kind of a model."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(AnswerSchema, kw_only=True):
    """A model in a list. `size` is its approximate memory in bytes."""

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
    """A list of models."""

    models: list[OllamaModel]


class OllamaModelCard(AnswerSchema, kw_only=True):
    """The full description of one model."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(AnswerSchema, kw_only=True):
    """The version of Ollama's API that is implemented."""

    version: str


class OllamaStatus(AnswerSchema, kw_only=True):
    """The progress of a pull."""

    status: str
