from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.engine.model.machine.device_memory import (
    GIB,
    available_memory,
    num_cache_blocks,
    share_memory,
)
from tests.fake_cgroup import write_cgroup2


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [
        (None, None, 4 * GIB),
        ("max", "0", 4 * GIB),
        (str(2 * GIB), str(GIB), GIB),
        (str(64 * GIB), str(GIB), 4 * GIB),
        (str(GIB), str(2 * GIB), 0),
    ],
)
def test_available_memory(
    tmp_path: Path, limit: str | None, used: str | None, expected: int
) -> None:
    if limit is not None and used is not None:
        write_cgroup2(tmp_path, {"memory.max": limit, "memory.current": used})
    (tmp_path / "proc").mkdir(exist_ok=True)
    meminfo = f"MemTotal:  9 kB\nMemAvailable:  {4 * GIB // 1024} kB\n"
    (tmp_path / "proc/meminfo").write_text(meminfo)
    assert available_memory(tmp_path) == expected


@pytest.mark.parametrize(
    ("cache_size", "available", "expected"),
    [
        (1, 0, 1024),
        (0.5, 0, 512),
        (0, 2 * GIB, 1024),  # half of what is free
        (0, 100 * GIB, 5000),  # no more than can be used
        (0.0001, 0, 0),
        (1e300, 0, 5000),
    ],
)
def test_num_cache_blocks(cache_size: float, available: int, expected: int) -> None:
    blocks = num_cache_blocks(
        cache_size, bytes_per_block=GIB // 1024, max_useful_blocks=5000, available=available
    )
    assert blocks == expected


def test_what_is_beside_the_blocks_is_part_of_the_size() -> None:
    blocks = num_cache_blocks(
        1,
        bytes_per_block=GIB // 1024,
        extra_bytes=GIB // 4,
        max_useful_blocks=5000,
        available=0,
    )
    assert blocks == 768


@pytest.mark.parametrize(
    ("cache_sizes", "expected"),
    [
        ([0.0], 8 * GIB),
        ([0.0, 0.0], 4 * GIB),
        ([2.0, 0.0, 0.0], 3 * GIB),  # what is spoken for is nobody else's
        ([9.0, 0.0], 0),
        ([1.0], 7 * GIB),
    ],
)
def test_caches_of_automatic_size_share_what_is_free(
    cache_sizes: list[float], expected: int
) -> None:
    assert share_memory(cache_sizes, 8 * GIB) == expected
