"""Decides when the requests of a load arrive."""

from __future__ import annotations

import math
import random
from itertools import accumulate


def arrival_times(
    number: int, request_rate: float, burstiness: float, rng: random.Random
) -> list[float]:
    """Returns seconds from the start, the first one 0.

    Intervals have a gamma distribution of the shape `burstiness`, which for 1 is that of a Poisson
    process. They are scaled, so that all requests take the time that the rate says: a short draw
    would otherwise be off by chance.

    Args:
        request_rate: requests a second; infinite = all at once.
    """
    if math.isinf(request_rate) or number < 2:
        return [0.0] * number
    times = list(
        accumulate((rng.gammavariate(burstiness, 1.0) for _ in range(number - 1)), initial=0.0)
    )
    scale = (number - 1) / request_rate / times[-1] if times[-1] else 0.0
    return [time * scale for time in times]
