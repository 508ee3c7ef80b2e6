"""NumPy versions of the sampling kernels, used until the kernels are compiled.

They take the same arguments and return the same results, except for rounding, but are several times
slower.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.model.model import Bits, Floats, as_float32

BROKEN: Final = -1
"""The result for a broken row, instead of a token."""

_LEAST: Final = -(2**31)
_LAST_POSITION: Final = 0xFFFFFFFF
_LEAST_EXPONENT: Final = -126
_NOTHING: Final = 1e-30
"""Weights below it are never drawn."""

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = 2**64 - 1


def likeliest(row: Bits, shift: np.int32) -> int:
    """The NumPy version of `sampling_kernels.likeliest`: `row` is [vocab_size]."""
    logits = _floats(row)
    position = int(logits.argmax())  # `argmax` returns the position of a NaN, if the row has one
    return position if np.isfinite(logits[position]) else BROKEN


def likeliest_of_rows(
    rows: Bits, shift: np.int32, indices: NDArray[np.int64], token_ids: NDArray[np.int64]
) -> None:
    """The NumPy version of `sampling_kernels.likeliest_of_rows`: `rows` is [R, vocab_size],
    `indices` and `token_ids`, which receives the results, are [N]."""
    for i, index in enumerate(indices):
        token_ids[i] = likeliest(rows[index], shift)


def draw_rows(
    rows: Bits,
    shift: np.int32,
    indices: NDArray[np.int64],
    settings: NDArray[np.float64],
    seeds: NDArray[np.uint64],
    positions: NDArray[np.int64],
    token_ids: NDArray[np.int64],
) -> None:
    """The NumPy version of `sampling_kernels.draw_rows`: `rows` is [R, vocab_size], `settings`
    [N, 4], and the other arrays are [N]. `token_ids` receives the results."""
    for i, index in enumerate(indices):
        state = _splitmix64(int(seeds[i]) + int(positions[i]) * _GOLDEN)
        with np.errstate(all="ignore"):  # logits may be infinite
            temperature, top_k, top_p, min_p = settings[i].tolist()
            token_ids[i] = _draw(rows[index], shift, temperature, top_k, top_p, min_p, state)


def log_sum_exp_and_top(row: Bits, shift: np.int32, k: int) -> tuple[float, NDArray[np.int64]]:
    """The NumPy version of `sampling_kernels.log_sum_exp_and_top`: `row` is [vocab_size], the
    returned ranks are [min(k, vocab_size)]."""
    logits = _floats(row).astype(np.float64)
    highest = float(logits.max())
    log_sum = 0.0
    if highest != -np.inf:
        log_sum = highest + math.log(np.exp(logits - highest).sum())
    rest = max(0, row.size - k)
    ranks = _ranks(row, shift)
    return log_sum, np.partition(ranks, rest)[rest:] if rest < row.size else ranks[:0]


def _draw(
    row: Bits,
    shift: np.int32,
    temperature: float,
    top_k: float,
    top_p: float,
    min_p: float,
    state: int,
) -> int:
    """Draws a token like `sampling_kernels._draw`. While top-p rejects the drawn token, draws again
    among the more likely ones."""
    position = likeliest(row, shift)
    if position == BROKEN:
        return BROKEN
    logits = _floats(row)
    exponents = (logits - logits[position]) * np.float32(math.log2(math.e) / temperature)
    exponents = np.where(exponents > _LEAST_EXPONENT, exponents, _LEAST_EXPONENT)
    weights = np.exp2(exponents.astype(np.float64))
    weights[(weights < _NOTHING) | (logits == -np.inf)] = 0
    order = np.argsort(-_ranks(row, shift))
    sums = np.append(0, weights[order].cumsum())
    num_kept = int(top_k) if 0 < top_k < row.size else row.size
    missing = top_p * sums[num_kept]
    if min_p > 0:
        least = np.float32(logits[position] + temperature * math.log(min_p))
        num_kept = min(num_kept, int((logits >= least).sum()))
    while True:
        state += _GOLDEN
        kept = np.sort(order[:num_kept])
        running = weights[kept].cumsum()
        index = np.searchsorted(running, _uniform(state) * running[-1], side="right")
        position = int(kept[min(index, num_kept - 1)])
        rank = int(np.flatnonzero(order == position)[0])
        if top_p >= 1 or sums[rank] < missing or not sums[rank]:
            return position
        num_kept = rank


def _ranks(row: Bits, shift: np.int32) -> NDArray[np.int64]:
    """Returns integers with the same order as the logits; among equal logits, the first position
    has the largest rank, as in `sampling_kernels`."""
    bits = row.astype(np.int64) << int(shift)
    keys = np.where(bits >= 0, bits, _LEAST - bits)
    return (keys << 32) + (_LAST_POSITION - np.arange(row.size))


def _floats(row: Bits) -> Floats:
    if row.dtype == np.int32:
        return row.view(np.float32)
    return as_float32(row.view(np.uint16))


def _splitmix64(state: int) -> int:
    """Returns the output of SplitMix64 for a state (Steele, Lea and Flood, 2014)."""
    state &= _MASK
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
    return state ^ (state >> 31)


def _uniform(state: int) -> float:
    """Returns a number in (0, 1)."""
    number: float = ((_splitmix64(state) >> 11) + 0.5) * 2.0**-53
    return number
