"""Writes what is told of a batch, in OpenAI's form."""

from __future__ import annotations

from typing import Any

import msgspec

from fastovms.batches.batch_record import BatchRecord
from fastovms.batches.line_usage import BatchUsage


def batch_object(record: BatchRecord) -> dict[str, Any]:
    """Returns the batch object."""
    errors = None
    if record.errors:
        errors = {"object": "list", "data": msgspec.to_builtins(record.errors)}
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "model": record.model,
        "errors": errors,
        "input_file_id": record.input_file_id,
        "completion_window": record.completion_window,
        "status": str(record.status),
        "output_file_id": record.output_file_id,
        "error_file_id": record.error_file_id,
        "created_at": record.created_at,
        "in_progress_at": record.in_progress_at,
        "expires_at": record.expires_at,
        "finalizing_at": record.finalizing_at,
        "completed_at": record.completed_at,
        "failed_at": record.failed_at,
        "expired_at": record.expired_at,
        "cancelling_at": record.cancelling_at,
        "cancelled_at": record.cancelled_at,
        "request_counts": {
            "total": record.total,
            "completed": record.completed,
            "failed": record.failed,
        },
        "usage": _usage(record.usage),
        "metadata": record.metadata,
    }


def _usage(usage: BatchUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
