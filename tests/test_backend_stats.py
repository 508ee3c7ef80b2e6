"""What is computed of a backend's numbers."""

from __future__ import annotations

import pytest

from fastovms.backend_stats import BackendStats


@pytest.mark.parametrize(
    ("num_blocks", "num_free_blocks", "usage"), [(0, 0, 0.0), (10, 10, 0.0), (10, 4, 0.6)]
)
def test_the_share_of_the_cache_in_use(num_blocks: int, num_free_blocks: int, usage: float) -> None:
    stats = BackendStats(num_blocks=num_blocks, num_free_blocks=num_free_blocks)
    assert stats.kv_cache_usage == usage
