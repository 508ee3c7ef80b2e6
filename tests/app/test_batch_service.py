"""Files and batches of a server belong to who has its directory."""

from __future__ import annotations

import time
from pathlib import Path

from fastovms.app.batch_service import BatchService
from fastovms.config.files_config import BatchConfig, FilesConfig


def service(path: Path | None) -> BatchService:
    return BatchService(path, FilesConfig(), BatchConfig(), time.time)


async def test_one_server_has_the_directory(tmp_path, caplog) -> None:
    first, second = service(tmp_path), service(tmp_path)
    assert first._store is not None
    assert second._store is None
    assert "another process uses it" in caplog.text
    await first.close()
    third = service(tmp_path)
    assert third._store is not None
    await third.close()
    await service(None).close()
