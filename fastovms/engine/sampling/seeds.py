"""Makes the seed of each sample of a request."""

from __future__ import annotations

import numpy as np


def sample_seed(seed: int, index: int) -> int:
    """Returns the 64-bit seed by which sample `index` of a request with this seed draws."""
    mixed = np.random.SeedSequence((seed % 2**64, index)).generate_state(1, np.uint64)
    return int(mixed[0])
