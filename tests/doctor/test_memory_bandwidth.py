from __future__ import annotations

from fastovms.doctor.memory_bandwidth import measure_bandwidth


def test_a_rate_is_measured() -> None:
    rate = measure_bandwidth(2, 1024, 64 * 1024 * 1024, max_seconds=0.05)
    assert 1e8 < rate < 1e13
