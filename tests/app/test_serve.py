"""Where the access log goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.app.serve import _access_log
from fastovms.config.service_config import ServiceConfig
from fastovms.service.log_writer import LineWriter


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
