"""From logits to token ids. Exact: every filter keeps the tokens that a full sort would keep, but
finds them without sorting the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.sequence import Sequence
from fastovms.params import SamplingParams

Floats = NDArray[np.float32]
Ids = NDArray[np.intp]

GREEDY_TEMPERATURE = 1e-5
"""At and below it the likeliest token is taken: dividing by less only overflows."""

_NUM_STRIDES = 64
_MAX_SORTED = 2048
_FLAT_MEAN = 0.02
_SAMPLE_SIZE = 1024
_MARGIN = 64
_SPARSE = 16
_ROW_SIZE = 256
_ONES = np.ones(_ROW_SIZE, np.float32)
_ROUNDING = 1e-3
_PEAKS = (np.float32(1e-3), np.float32(1e-4), np.float32(1e-5))
"""Weights from which on there are few, in most texts, and which hold most of the whole."""

_CHUNK_BYTES = 4 * 1024 * 1024
"""Of logits that are looked through ahead: they shall be in a cache when their tokens are chosen.
"""


def likeliest(logits: Floats) -> list[int]:
    """The first of the largest logits of each row of float32 [rows, vocab_size].

    The bits of non-negative floats order as integers do, whose argmax numpy finds in half the
    time (it has no NaN to look out for). A row without a non-negative logit is done again.
    """
    bits = logits.view(np.int32)
    token_ids: list[int] = bits.argmax(axis=1).tolist()
    for row, token_id in enumerate(token_ids):
        if bits[row, token_id] < 0:
            token_ids[row] = int(logits[row].argmax())
    return token_ids


def each_likeliest(logits: Floats) -> Iterator[int]:
    """As `likeliest`, a few rows ahead of those that are taken."""
    num_rows = max(1, _CHUNK_BYTES // (logits.itemsize * logits.shape[1]))
    for start in range(0, len(logits), num_rows):
        yield from likeliest(logits[start : start + num_rows])


def choose(logits: Floats, likeliest_id: int, sequence: Sequence) -> int:
    """Chooses the next token of a sequence.

    Logits may be infinite: whoever calls it ignores numpy's warnings, once for all rows.

    Args:
        logits: float32 [vocab_size], raw. Not modified.
        likeliest_id: their argmax.
        sequence: if it samples, one draw is taken from its `rng`.
    """
    params = sequence.params
    if sequence.processors:
        logits = logits.copy()
        for process in sequence.processors:
            process(logits, sequence.token_ids)
        (likeliest_id,) = likeliest(logits[None])
    highest = logits[likeliest_id]
    if highest == -np.inf:  # the request has ruled out everything
        if sequence.grammar is not None:
            sequence.grammar.give_up()
        return min(params.eos_token_ids, default=likeliest_id)
    if params.temperature <= GREEDY_TEMPERATURE or not np.isfinite(highest):
        return likeliest_id
    return _draw(logits, highest, params, sequence.rng)


def _draw(
    logits: Floats, highest: np.float32, params: SamplingParams, rng: np.random.Generator
) -> int:
    """Filters in the order temperature, top-k, top-p, min-p, and draws from what is left.

    `weights` are probabilities up to a factor: the likeliest token's is 1.
    """
    ids: Ids | None = None
    if 0 < params.top_k < logits.size:
        ids = top_k_ids(logits, params.top_k)
        logits = logits[ids]
    elif params.top_p >= 1 and params.min_p > 0:
        # Ahead of the exponentials, which few then need: a little more than what min-p keeps.
        reach = params.temperature * (math.log(params.min_p) - _ROUNDING)
        ids = np.flatnonzero(logits >= highest + np.float32(reach))
        logits = logits[ids]
    weights = logits - highest
    if params.temperature != 1:
        weights /= np.float32(params.temperature)
    np.exp(weights, out=weights)
    if params.top_p < 1:
        kept = top_p_ids(weights, params.top_p)
        ids, weights = (kept if ids is None else ids[kept]), weights[kept]
    if params.min_p > 0:
        kept = np.flatnonzero(weights >= params.min_p)
        ids, weights = (kept if ids is None else ids[kept]), weights[kept]
    position = _draw_position(weights, rng.random())
    return position if ids is None else int(ids[position])


def _draw_position(weights: Floats, uniform: float) -> int:
    """The position at which the running sum of `weights` passes `uniform` of the whole.

    In two levels: the sums of rows first, then inside one row.
    """
    sums, tail = _row_sums(weights)
    edges = sums.cumsum()
    split = sums.size * _ROW_SIZE
    before = float(edges[-1]) if sums.size else 0.0
    target = uniform * (before + float(tail.sum(dtype=np.float64)))
    row = int(edges.searchsorted(target, side="right"))
    if row == sums.size:
        if tail.size or not row:
            return split + _pass_position(tail, target - before)
        row -= 1
    start = row * _ROW_SIZE
    before = float(edges[row - 1]) if row else 0.0
    return start + _pass_position(weights[start : start + _ROW_SIZE], target - before)


def total_of(weights: Floats) -> float:
    """Their sum, to about seven digits."""
    sums, tail = _row_sums(weights)
    return float(sums.sum()) + float(tail.sum(dtype=np.float64))


def _row_sums(weights: Floats) -> tuple[NDArray[np.float64], Floats]:
    """The sums of rows of 256 weights, and the weights that fill no row. Vectorised, and several
    times faster than a sum of as many float64."""
    split = weights.size - weights.size % _ROW_SIZE
    sums = weights[:split].reshape(-1, _ROW_SIZE) @ _ONES
    return sums.astype(np.float64), weights[split:]


def _pass_position(weights: Floats, target: float) -> int:
    running = weights.cumsum(dtype=np.float64)
    position = int(running.searchsorted(target, side="right"))
    if position < weights.size:
        return position
    # Rounding put the target on or past the end: the last token that has any weight.
    possible = np.flatnonzero(weights)
    return int(possible[-1]) if possible.size else 0


def top_k_ids(values: Floats, k: int) -> Ids:
    """Positions of the k largest values, ascending; of equal values the first ones.

    The k-th largest of the maxima of disjoint groups cannot exceed the k-th largest value, so the
    groups whose maxima are below it are out, and few values are left to sort.
    """
    candidates = _candidate_ids(values, k)
    order = np.argsort(-values[candidates], kind="stable")[:k]
    return np.sort(candidates[order])


def _candidate_ids(values: Floats, k: int) -> Ids:
    """Positions, ascending, among which those of the k largest values are."""
    width = values.size // _NUM_STRIDES
    if k > width:
        return np.arange(values.size)
    split = width * _NUM_STRIDES
    groups = values[:split].reshape(_NUM_STRIDES, width)  # each is a column
    maxima = groups.max(axis=0)
    bound = np.partition(maxima, width - k)[width - k]
    columns = np.flatnonzero(maxima >= bound)
    rows, positions = np.nonzero(groups[:, columns] >= bound)
    return np.concatenate(
        [rows * width + columns[positions], split + np.flatnonzero(values[split:] >= bound)]
    )


def top_p_ids(weights: Floats, top_p: float) -> Ids:
    """Positions, ascending, of the fewest largest weights that hold `top_p` of the whole; of
    equal weights the first ones. The largest weight is 1."""
    total = total_of(weights)
    missing = top_p * total
    for least in _PEAKS:
        peak = np.flatnonzero(weights >= least)
        if peak.size > _MAX_SORTED:
            break
        likely = weights[peak]
        if total_of(likely) >= missing:
            return peak[_fewest_ids(likely, likely, missing)]
    if total < _FLAT_MEAN * weights.size:
        return _fewest_ids(weights, *_bracket(weights, missing))
    return _fewest_ids(weights, weights, missing)


def _fewest_ids(weights: Floats, undecided: Floats, missing: float) -> Ids:
    """Positions, ascending, of the fewest largest weights: of those above the `undecided` ones all,
    and as many of these as come to `missing`."""
    while undecided.size > _MAX_SORTED:
        size = undecided.size
        undecided, missing = _narrow(undecided, missing)
        if undecided.size == size:  # most of them are equal
            break
    descending = -np.sort(-undecided)
    if not descending.size:
        return np.arange(weights.size)
    num_kept = int(descending.cumsum(dtype=np.float64).searchsorted(missing, side="left")) + 1
    smallest = descending[min(num_kept, descending.size) - 1]
    ids = np.flatnonzero(weights >= smallest)
    num_surplus = int(np.count_nonzero(descending[num_kept:] == smallest))
    if num_surplus:
        equal = ids[weights[ids] == smallest]
        ids = np.setdiff1d(ids, equal[-num_surplus:], assume_unique=True)
    return ids


def _bracket(weights: Floats, missing: float) -> tuple[Floats, float]:
    """The weights of one order of magnitude, among which the smallest to keep is, and what they
    must contribute to `missing` after all larger ones."""
    upper, upper_mass = np.float32(np.inf), 0.0
    threshold = np.float32(0.1)
    while True:
        is_above = weights >= threshold
        if not threshold or np.count_nonzero(is_above) * _SPARSE > weights.size:
            # Not few any more: to select them would take longer than what follows.
            is_undecided = weights < upper
            return _select(weights, is_undecided), missing - upper_mass
        above = weights[is_above]
        mass = float(above.sum(dtype=np.float64))
        if mass >= missing:
            return above[above < upper], missing - upper_mass
        upper, upper_mass = threshold, mass
        threshold *= np.float32(0.1)


def _narrow(undecided: Floats, missing: float) -> tuple[Floats, float]:
    """Those of the weights among which the smallest to keep is, and what they must contribute to
    `missing` after all larger ones.

    A sample says where that weight lies, between two values that are mostly right; the sums above
    and between them say for certain.
    """
    sample = -np.sort(-undecided[:: undecided.size // _SAMPLE_SIZE])
    running = sample.cumsum(dtype=np.float64)
    share = missing / float(undecided.sum(dtype=np.float64))
    position = int(running.searchsorted(share * running[-1]))
    high = sample[position - _MARGIN] if position >= _MARGIN else np.float32(np.inf)
    low = sample[position + _MARGIN] if position + _MARGIN < sample.size else np.float32(0)
    is_above = undecided >= high
    mass = _mass(undecided, is_above)
    if mass >= missing:
        return _select(undecided, is_above), missing
    is_below = undecided < low
    between = _select(undecided, ~(is_above | is_below))
    mass_between = float(between.sum(dtype=np.float64))
    if mass + mass_between >= missing:
        return between, missing - mass
    return _select(undecided, is_below), missing - mass - mass_between


def _mass(weights: Floats, which: NDArray[np.bool_]) -> float:
    """Several times faster than summing a selection."""
    return float((weights * which).sum(dtype=np.float64))


def _select(weights: Floats, which: NDArray[np.bool_]) -> Floats:
    """As `weights[which]`, which is slow where one cannot guess."""
    return weights[np.flatnonzero(which)]
