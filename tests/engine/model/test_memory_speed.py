from __future__ import annotations

from fastovms.engine.model.memory_speed import MemoryReader


def test_memory_is_read_at_some_speed_each_time() -> None:
    read = MemoryReader(size=2**20, num_threads=2)
    assert all(1e6 < read() < 1e14 for _ in range(3))
