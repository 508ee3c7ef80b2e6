"""Writes what is told of a file, in OpenAI's form."""

from __future__ import annotations

from typing import Any

from fastovms.errors import NotFound
from fastovms.files.file_record import FileRecord


def file_object(record: FileRecord) -> dict[str, Any]:
    """Returns the file object."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.size,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "filename": record.name,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }


def no_such_file(id: str) -> NotFound:
    """Returns what is told of a file that is not there."""
    return NotFound(f"No such File object: {id[:200]}", param="id")
