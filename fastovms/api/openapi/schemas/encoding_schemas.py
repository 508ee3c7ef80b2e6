"""Declares the answers of `/embeddings`, `/rerank` and `/score`."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from fastovms.api.openapi.schemas.generation_schemas import AnswerSchema


class EncodingUsage(AnswerSchema, kw_only=True):
    """The tokens of all texts of a request."""

    prompt_tokens: int
    total_tokens: int


class Embedding(AnswerSchema, kw_only=True):
    """The vector of one text: numbers, or in base64 the bytes of their 32 bits."""

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
    """Where a document was, and how well it answers the query."""

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
    """What Cohere tells beside results."""

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
    """How well the two texts of a pair go together."""

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
