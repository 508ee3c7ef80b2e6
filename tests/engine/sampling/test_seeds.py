from __future__ import annotations

from fastovms.engine.sampling.seeds import sample_seed


def test_samples_and_requests_draw_apart_and_always_alike() -> None:
    seeds = {sample_seed(seed, index) for seed in (0, 1, -1, 2**63) for index in range(4)}
    assert len(seeds) == 16
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert sample_seed(7, 3) == sample_seed(7, 3) == sample_seed(7 + 2**64, 3)
