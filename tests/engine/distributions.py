"""Logits of many kinds, and a test of the frequencies of sampled tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

LOGITS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "almost flat": lambda rng, size: rng.normal(0, 0.05, size),
    "flat": lambda rng, size: rng.normal(0, 1, size),
    "long tail": lambda rng, size: rng.normal(0, 2.5, size),
    "peaked": lambda rng, size: rng.normal(0, 8, size),
    "ordered": lambda rng, size: np.linspace(0, -3, size),
    "equal": lambda rng, size: np.zeros(size),
    "two values": lambda rng, size: rng.choice([0.0, -1.0], size),
    "few values": lambda rng, size: np.round(rng.normal(0, 1, size), 1),
    "few left": lambda rng, size: np.where(rng.random(size) < 0.01, rng.normal(0, 1, size), -1e9),
    "one and a flat rest": lambda rng, size: np.append(rng.normal(-9, 0.1, size - 1), 0.0),
    "waves as long as a stride": lambda rng, size: np.cos(np.arange(size) * 2048 * np.pi / size),
}


def assert_drawn_from(probabilities: NDArray[np.float64], drawn: Sequence[int]) -> None:
    """Compares the frequencies of sampled tokens with their probabilities: likely tokens one by
    one, the others in bins of neighbours and of distant tokens. No other token may have been
    sampled. Five standard deviations of the chi-squared statistic are allowed."""
    counts = np.bincount(drawn, minlength=probabilities.size).astype(np.float64)
    assert not counts[probabilities == 0].any(), "drawn what is impossible"
    expected = probabilities * len(drawn)
    ids = np.arange(probabilities.size)
    likely = ids[expected >= 20]
    rest = expected < 20
    for bins in (ids * 12 // ids.size, ids % 12, np.argsort(np.argsort(expected)) * 12 // ids.size):
        sums = [(np.bincount(bins, x * rest), x[likely]) for x in (counts, expected)]
        seen, wanted = (np.concatenate(parts) for parts in sums)
        wide = wanted >= 5
        seen, wanted = (np.append(x[wide], x[~wide].sum()) for x in (seen, wanted))
        statistic = float((((seen - wanted) ** 2) / np.maximum(wanted, 1)).sum())
        assert statistic < wanted.size + 5 * np.sqrt(2 * wanted.size), (seen, wanted)
