from __future__ import annotations

import numpy as np

from fastovms.doctor.memory_bandwidth import _sum, measure_bandwidth


def test_everything_is_read() -> None:
    assert _sum(np.arange(1000, dtype=np.uint64)) == 499_500


def test_a_rate_is_measured() -> None:
    rate = measure_bandwidth(2, 1024, 64 * 1024 * 1024, max_seconds=0.05)
    assert 1e8 < rate < 1e13
