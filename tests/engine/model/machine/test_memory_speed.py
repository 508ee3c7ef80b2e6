from __future__ import annotations

import threading

from fastovms.engine.model.machine.memory_speed import MemoryReader


def test_memory_is_read_at_some_speed_each_time() -> None:
    with MemoryReader(size=2**20, num_threads=2) as read:
        assert all(1e6 < read() < 1e14 for _ in range(3))
        assert "memory-reader" in _thread_names()
    assert "memory-reader" not in _thread_names()


def _thread_names() -> set[str]:
    return {thread.name.partition("_")[0] for thread in threading.enumerate()}
