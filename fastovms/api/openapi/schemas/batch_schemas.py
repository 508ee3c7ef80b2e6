"""Declares the answers about files and batches."""

from __future__ import annotations

from typing import Literal

from fastovms.api.openapi.schemas.generation_schemas import AnswerSchema


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
    """What is wrong with the input of a batch, and in which line."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(AnswerSchema, kw_only=True):
    """All that is wrong with the input of a batch, up to 100 faults."""

    object: Literal["list"]
    data: list[BatchLineError]


class BatchCounts(AnswerSchema, kw_only=True):
    """How many requests of a batch there are, and how they have ended so far."""

    total: int
    completed: int
    failed: int


class BatchCachedTokens(AnswerSchema, kw_only=True):
    """How many tokens of the prompts were in the cache."""

    cached_tokens: int


class BatchReasoningTokens(AnswerSchema, kw_only=True):
    """How many tokens of the answers are reasoning."""

    reasoning_tokens: int


class BatchTokens(AnswerSchema, kw_only=True):
    """The tokens of all requests that were answered."""

    input_tokens: int
    input_tokens_details: BatchCachedTokens
    output_tokens: int
    output_tokens_details: BatchReasoningTokens
    total_tokens: int


class BatchObject(AnswerSchema, kw_only=True):
    """Describes a batch: where it stands, and the files that it has left."""

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
