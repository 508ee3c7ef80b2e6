from __future__ import annotations

import time

from fastovms.config import StateConfig
from fastovms.state.opening.opening import open_store


def test_nothing_is_kept():
    assert open_store(StateConfig(enable_store=False), {}, time.time) is None


async def test_a_directory(tmp_path):
    store = open_store(StateConfig(state_dir=str(tmp_path)), {}, time.time)
    assert store.stats().is_on_disk
    await store.close()
    assert (tmp_path / "state.db").exists()
