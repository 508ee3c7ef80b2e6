"""Schemas of administration, batches, embeddings and Ollama's API."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from fastovms.api.dialect import AnswerSchema
from fastovms.api.openapi.schemas import TokenLogprob

# Declares the answers about models, tokens and the server.


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
