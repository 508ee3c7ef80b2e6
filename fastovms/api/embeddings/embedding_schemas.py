"""Declares the bodies of requests for embeddings, rerank and score."""

from __future__ import annotations

from typing import Any

from fastovms.api.wire.bodies.request_schemas import ModelField


class EncodingFields(ModelField, frozen=True, kw_only=True):
    """The fields that all of them share. None = absent."""

    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    use_activation: bool | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    user: str | None = None


class EmbeddingRequest(EncodingFields, frozen=True, kw_only=True):
    """The body of `POST /embeddings`."""

    input: str | list[str | int | list[int]] | None = None
    messages: Any = None
    encoding_format: str | None = None
    dimensions: int | None = None
    add_special_tokens: bool | None = None
    embed_dtype: str | None = None
    endianness: str | None = None


class RerankRequest(EncodingFields, frozen=True, kw_only=True):
    """The body of `POST /rerank`."""

    query: str | None = None
    documents: list[str | dict[str, Any]] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    max_chunks_per_doc: int | None = None
    max_tokens_per_doc: int | None = None
    rank_fields: Any = None


class ScoreRequest(EncodingFields, frozen=True, kw_only=True):
    """The body of `POST /score`. The texts have one of four pairs of names."""

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    items: str | list[str] | None = None
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None
