from __future__ import annotations

import sys
import time

import pytest

from fastovms.app.state_opening import open_store
from fastovms.errors import ConfigurationError
from fastovms.server_config import StateConfig


def test_disabled_store_is_not_opened():
    assert open_store(StateConfig(enable_store=False), {}, time.time) is None


async def test_state_url_leaves_the_directory_to_files(tmp_path, postgres_server):
    store = open_store(
        StateConfig(state_dir=str(tmp_path), state_url=postgres_server.url()), {}, time.time
    )
    assert store.stats().is_on_disk
    await store.close()
    assert list(tmp_path.iterdir()) == []  # the directory is for files and batches


def test_state_url_without_the_extra_is_refused(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fastovms.parts.postgres.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[postgres\]'"):
        open_store(StateConfig(state_url="postgresql://b"), {}, time.time)
