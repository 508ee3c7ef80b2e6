"""Where caches and state lie by default, for users of a shell and of systemd alike."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from fastovms.catalog.hub import model_root
from fastovms.engine.sampling.jit import kernel_cache
from fastovms.state.sqlite.location import default_directory
from fastovms.system.disk_cache import DiskCache, cache_root
from fastovms.system.user_dirs import private_directory, user_directory


def homeless(_: int) -> pwd.struct_passwd:
    raise KeyError


@pytest.mark.parametrize(
    ("environ", "cache", "state"),
    [
        ({"HOME": "/h"}, "/h/.cache/fastovms", "/h/.local/state/fastovms"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s"},
         "/c/fastovms", "/s/fastovms"),
        ({"XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s"}, "/c/fastovms", "/s/fastovms"),
        # Relative paths are ignored, whoever asks.
        ({"HOME": "/h", "XDG_CACHE_HOME": "c", "XDG_STATE_HOME": "~/s"},
         "/h/.cache/fastovms", "/h/.local/state/fastovms"),
        ({"HOME": "h"}, None, None),
        ({}, None, None),
    ],
)  # fmt: skip
def test_every_reader_follows_the_specification(monkeypatch, environ, cache, state):
    monkeypatch.setattr(pwd, "getpwuid", homeless)
    assert user_directory("cache", environ) == (Path(cache) if cache else None)
    assert user_directory("state", environ) == (Path(state) if state else None)
    assert cache_root(None, environ) == (Path(cache, "derived") if cache else None)
    assert kernel_cache(environ) == (f"{cache}/kernels" if cache else "")
    assert model_root(None, environ) == Path(cache or "/nonexistent", "models")
    assert default_directory(environ) == Path(state or "/nonexistent/fastovms")


def test_a_service_without_home_has_that_of_its_user():
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert user_directory("cache", {}) == home / ".cache" / "fastovms"
    assert user_directory("state", {}) == home / ".local" / "state" / "fastovms"


def test_what_the_operator_names_starts_from_the_working_directory():
    environ = {"HOME": "/h"}
    assert cache_root("c", environ) == Path("c")
    assert model_root(Path("m"), environ) == Path("m")


@pytest.mark.parametrize(("mode", "expected"), [(0o777, 0o775), (0o1777, 0o1777), (0o700, 0o700)])
def test_what_every_user_may_write_is_made_private(tmp_path, mode, expected) -> None:
    path = tmp_path / "state"
    path.mkdir()
    path.chmod(mode)
    private_directory(path)
    assert stat.S_IMODE(path.stat().st_mode) == expected
    private_directory(tmp_path / "new" / "one")
    assert stat.S_IMODE((tmp_path / "new" / "one").stat().st_mode) == 0o700


def test_directories_of_other_users_are_not_trusted(tmp_path, monkeypatch) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    if owner == 0:  # root's directories are trusted
        os.chown(tmp_path, 4711, -1)
    with pytest.raises(PermissionError, match="belongs to the user"):
        private_directory(tmp_path)
    assert DiskCache(tmp_path).find("a", "b") is None
