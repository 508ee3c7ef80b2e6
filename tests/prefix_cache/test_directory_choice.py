from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastovms.config.engine_config import PrefixCacheConfig
from fastovms.prefix_cache import directory_choice
from fastovms.prefix_cache.directory_choice import open_block_directory


def test_it_is_below_the_state_unless_named(tmp_path: Path) -> None:
    config = PrefixCacheConfig(max_bytes=1000)
    opened = open_block_directory(config, tmp_path)
    assert opened is not None
    assert opened.directory == tmp_path / "prefix-cache"
    opened.close()
    assert open_block_directory(config, None) is None
    assert open_block_directory(PrefixCacheConfig(max_bytes=0), tmp_path) is None


@pytest.mark.parametrize(("gigabytes", "is_kept"), [(21, True), (19, False)])
def test_by_default_only_where_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gigabytes: int, is_kept: bool
) -> None:
    disk = SimpleNamespace(f_bavail=gigabytes, f_frsize=1024**3)
    monkeypatch.setattr(directory_choice.os, "statvfs", lambda _: disk)
    opened = open_block_directory(PrefixCacheConfig(directory=tmp_path), None)
    assert (opened is not None) == is_kept
    if opened is not None:
        opened.close()


def test_a_second_process_and_a_directory_that_is_none_go_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = PrefixCacheConfig(directory=tmp_path / "c", max_bytes=1000)
    first = open_block_directory(config, None)
    assert first is not None
    with caplog.at_level(logging.WARNING):
        assert open_block_directory(config, None) is None
        (tmp_path / "file").touch()
        wrong = PrefixCacheConfig(directory=tmp_path / "file", max_bytes=1000)
        assert open_block_directory(wrong, None) is None
    assert "another process uses" in caplog.text
    assert os.fspath(tmp_path / "file") in caplog.text
    first.close()
