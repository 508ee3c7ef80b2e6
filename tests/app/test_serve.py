"""Tests of `fastovms/app/serve.py`."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from fastovms.app.serve import ServerConfig, _access_log, check_sizes
from fastovms.config import HttpConfig
from fastovms.errors import ConfigurationError
from fastovms.parts.batches.service import BatchService
from fastovms.server_config import (
    BatchConfig,
    FilesConfig,
    MediaConfig,
    PrefixCacheConfig,
    ResidencyConfig,
    ServiceConfig,
    StateConfig,
)
from fastovms.service.log_writer import LineWriter
from tests.api.conftest import make_api

__all__ = ["make_api"]  # a fixture

# Files and batches of a server belong to the process that has locked its directory.


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


async def test_files_are_opened_once_their_directory_is_available(
    make_api, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("fastovms.parts.batches.service._FIRST_DELAY", 0.001)
    first, second = service(tmp_path), service(tmp_path)
    api = make_api()
    second.start(api.router, api.context, lambda: 0)
    paths = ("/v1/files", "/v1/files/file-a", "/v1/batches", "/v1/batches/batch_a")

    async def statuses() -> list[int]:
        return [(await api.call("GET", path)).status for path in paths]

    assert await statuses() == [503] * 4
    response = await api.call("GET", "/v3/files")
    assert b"files are not available yet: " in response.body
    assert ("Retry-After", "1") in response.headers
    await first.close()
    async with asyncio.timeout(60):
        while await statuses() != [200, 404, 200, 404]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await second.close()
    third = service(tmp_path)
    assert third._store is not None
    third.start(make_api().router, api.context, lambda: 0)
    fourth = service(tmp_path)
    fourth.start(make_api().router, api.context, lambda: 0)
    await fourth.close()  # while it waits for the directory
    await third.close()


# The destination of the access log.


@pytest.mark.parametrize(
    ("access_log", "has_file", "place"),
    [("off", False, None), ("off", True, None), ("text", False, "log"), ("json", True, "file")],
)
def test_where_the_access_log_goes(
    access_log: str, has_file: bool, place: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "access" if has_file else None
    log = LineWriter(tmp_path / "log")
    config = ServiceConfig(access_log=access_log, access_log_file=file)
    with _access_log(config, log) as lines:
        assert (lines is None) is (place is None)
        assert (lines is log) is (place == "log")
    assert (tmp_path / "access").exists() is (place == "file")
    log.close()


@pytest.mark.parametrize(
    ("config", "refusal", "warning"),
    [
        ({}, "", ""),
        ({"http": HttpConfig(max_buffered_bodies=2**60)}, "--max-buffered-bodies", ""),
        ({"media": MediaConfig(max_image_memory=2**60)}, "--max-image-memory", ""),
        ({"residency": ResidencyConfig(model_memory=2**60)}, "--model-memory", ""),
        ({"state": StateConfig(max_bytes=2**60)}, "", "--state-max-size"),
        ({"files": FilesConfig(max_files_size=2**60)}, "", "--max-files-size"),
        ({"prefix_cache": PrefixCacheConfig(max_bytes=2**60)}, "", "--prefix-cache-disk-size"),
    ],
)
def test_sizes_beyond_the_machine_are_named(
    caplog: pytest.LogCaptureFixture, config: dict[str, Any], refusal: str, warning: str
) -> None:
    match = f"^{refusal} 1.15e\\+09 GB is more than the memory"
    with pytest.raises(ConfigurationError, match=match) if refusal else nullcontext():
        check_sizes(ServerConfig((), **config))
    assert (f"{warning} 1.15e+09 GB is more than the disk of" in caplog.text) == bool(warning)
