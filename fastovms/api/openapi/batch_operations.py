"""Lists what the routes of files and batches do, take and answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from fastovms.api.batches.batches import BatchRequest
from fastovms.api.openapi.operation import Operation
from fastovms.api.openapi.schemas.batch_schemas import (
    BatchList,
    BatchObject,
    DeletedFile,
    FileForm,
    FileList,
    FileObject,
)

_PAGE: Final[Mapping[str, Any]] = {
    "limit": int,
    "order": Literal["asc", "desc"],
    "after": str,
}

BATCH_OPERATIONS: Final[Mapping[str, Mapping[str, Operation]]] = {
    "Files": {
        "POST /files": Operation(
            "Takes a file, which is written to the disk as it comes: `file`, `purpose`, and "
            "`expires_after[anchor]` and `expires_after[seconds]` if it is to expire.",
            FileObject,
            body=FileForm,
            body_type="multipart/form-data",
        ),
        "GET /files": Operation(
            "Lists the files, the newest first.", FileList, query={**_PAGE, "purpose": str}
        ),
        "GET /files/{id}": Operation("Describes a file.", FileObject),
        "DELETE /files/{id}": Operation(
            "Deletes a file, unless a batch that has not ended reads it.", DeletedFile
        ),
        "GET /files/{id}/content": Operation(
            "Returns the content of a file, or the `Range` of it.",
            str,
            media_type="application/octet-stream",
        ),
    },
    "Batches": {
        "POST /batches": Operation(
            "Runs the requests in a file of JSON lines, behind all others, and leaves the answers "
            "in another one.",
            BatchObject,
            body=BatchRequest,
            required=("input_file_id", "endpoint", "completion_window"),
            examples={
                "Chats": {
                    "input_file_id": "file-0123456789abcdef0123456789abcdef",
                    "endpoint": "/v1/chat/completions",
                    "completion_window": "24h",
                }
            },
        ),
        "GET /batches": Operation("Lists the batches, the newest first.", BatchList, query=_PAGE),
        "GET /batches/{id}": Operation("Tells how far a batch has come.", BatchObject),
        "POST /batches/{id}/cancel": Operation(
            "Has a batch end with what is done by then.", BatchObject
        ),
    },
}
"""Method and path of each route, by the sections of the page."""
