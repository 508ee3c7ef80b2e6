"""Adds the routes of files and of batches to a router."""

from __future__ import annotations

from functools import partial
from typing import Final

from fastovms.api.batches.batches import Batches
from fastovms.api.files.file_endpoints import Files
from fastovms.api.wire.dialect import DIALECTS
from fastovms.api.wire.endpoint import endpoint
from fastovms.http.routing.messages import UploadHandler
from fastovms.http.routing.router import Router

UPLOAD_ROUTES: Final = tuple(
    f"{prefix}/files" for dialect in DIALECTS for prefix in dialect.prefixes
)
"""The patterns of routes whose bodies are no JSON."""


def add_batch_routes(router: Router, files: Files, batches: Batches) -> None:
    """Adds the routes of files, and of batches, whose lines those of the models answer."""
    handlers = (
        ("GET", "/files", files.list),
        ("GET", "/files/{id}", files.get),
        ("DELETE", "/files/{id}", files.delete),
        ("GET", "/files/{id}/content", files.content),
        ("POST", "/batches", batches.create),
        ("GET", "/batches", batches.list),
        ("GET", "/batches/{id}", batches.get),
        ("POST", "/batches/{id}/cancel", batches.cancel),
    )
    for dialect in DIALECTS:
        open_sink = partial(files.open_upload, dialect=dialect)
        upload = UploadHandler(open_sink, endpoint(files.create, dialect))
        for prefix in dialect.prefixes:
            router.add("POST", f"{prefix}/files", upload)
            for method, path, handler in handlers:
                router.add(method, f"{prefix}{path}", endpoint(handler, dialect))
