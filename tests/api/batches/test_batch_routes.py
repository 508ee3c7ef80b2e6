"""Which routes files and batches have."""

from __future__ import annotations

import time

import pytest

from fastovms.api.batches.batch_routes import UPLOAD_ROUTES
from fastovms.app.batch_service import BatchService
from fastovms.config.files_config import BatchConfig, FilesConfig
from fastovms.http.routing.messages import UploadHandler
from fastovms.http.routing.router import Match


@pytest.mark.parametrize("prefix", ["/v1", "/v3", "/v3/v1"])
def test_routes(make_api, prefix: str) -> None:
    api = make_api()
    service = BatchService(None, FilesConfig(), BatchConfig(), time.time)
    service.start(api.router, api.context, lambda: 0)
    for path in ("/files", "/files/x", "/files/x/content", "/batches", "/batches/x"):
        assert isinstance(api.router.match("GET", prefix + path), Match)
    upload = api.router.match("POST", f"{prefix}/files")
    assert isinstance(upload.handler, UploadHandler)
    assert upload.pattern in UPLOAD_ROUTES
