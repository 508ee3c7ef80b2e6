"""Where caches and state lie by default, for users of a shell and of systemd alike."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from fastovms.catalog.hub import model_root
from fastovms.engine.sampling.jit import kernel_cache
from fastovms.state.sqlite.location import default_directory
from fastovms.system.disk_cache import cache_root
from fastovms.system.user_dirs import user_directory


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
