"""Decides how much of each guess a step verifies: what gives the most tokens a second."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.scheduling.step_costs import StepCosts

_SIZES: Final = (1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63, 95, 127, 191, 255)
"""How many drafted tokens a step may have, beside as many as there are and as the step before had:
few sizes, so that the same ones come again, which takes less time, and their costs are known."""

_LEAST_GAIN: Final = 1.02
"""By what factor drafts must make a step's tokens faster: of many estimates the best one is mostly
one that errs."""


def draft_lengths(
    chances: Sequence[NDArray[np.float64]],
    costs: StepCosts,
    *,
    num_sequences: int,
    num_rows: int,
) -> list[int]:
    """Returns how many tokens of each guess to draft in the next step.

    A token is worth its chance to be right. The likeliest ones of all sequences come first, and
    there are as many as make the most of the step's time.

    Args:
        chances: for each guess, how likely each token is right with all before it: they fall.
        costs: what steps take.
        num_sequences: sequences that decode in the step.
        num_rows: their rows without these guesses.
    """
    values = np.concatenate([np.empty(0), *chances])
    seconds = costs.next_decode_seconds(num_sequences, num_rows)
    if not values.size or seconds is None:
        return [0] * len(chances)
    if seconds <= 0:
        return [len(of) for of in chances]
    if num_rows == num_sequences and costs.is_plain_step_due(num_sequences):
        return [0] * len(chances)
    likeliest = np.argsort(-values, kind="stable")
    gains = np.cumsum(values[likeliest])
    best, best_rate = 0, _LEAST_GAIN * num_sequences / seconds
    sizes = {*takewhile(lambda size: size < values.size, _SIZES), values.size}
    sizes.add(min(values.size, max(0, costs.last_num_rows - num_rows)))
    for size in sorted(sizes - {0}):
        seconds = costs.next_decode_seconds(num_sequences, num_rows + size)
        if seconds is None:
            break
        rate = (num_sequences + float(gains[size - 1])) / seconds
        if rate > best_rate:
            best, best_rate = size, rate
    if best == 0:
        costs.refuse_drafts(num_sequences)
    owners = np.repeat(np.arange(len(chances)), [len(of) for of in chances])
    counts: list[int] = np.bincount(owners[likeliest[:best]], minlength=len(chances)).tolist()
    return counts


def draft_rate(chances: NDArray[np.float64], costs: StepCosts, *, num_sequences: int) -> float:
    """Returns how many tokens a second a step makes that drafts these alone. Where steps take no
    time it is the number of tokens gained."""
    gain = float(chances.sum())
    num_rows = num_sequences + len(chances)
    seconds = costs.next_decode_seconds(num_sequences, num_rows)
    return (num_sequences + gain) / seconds if seconds else gain
