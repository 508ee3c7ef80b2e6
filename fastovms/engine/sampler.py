"""From logits to token ids. Exact: every filter keeps the tokens that a full sort would keep, but
finds them without sorting the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.draws import draw, draw_nucleus, weights_of
from fastovms.engine.sequence import Sequence
from fastovms.params import SamplingParams

Floats = NDArray[np.float32]
Ids = NDArray[np.intp]

GREEDY_TEMPERATURE = 1e-5
"""At and below it the likeliest token is taken: dividing by less only overflows."""

_NUM_STRIDES = 64

_CHUNK_BYTES = 1024 * 1024
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
        logits: float32 [vocab_size], raw. Modified, unless the request wants them as well: for log
            probabilities.
        likeliest_id: their argmax.
        sequence: if it samples, its `rng` is drawn from.
    """
    params = sequence.params
    if sequence.processors:
        if params.logprobs is not None:
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
    """Filters in the order temperature, top-k, top-p, min-p, and draws from what is left."""
    ids: Ids | None = None
    if 0 < params.top_k < logits.size:
        ids = top_k_ids(logits, params.top_k)
        logits = logits[ids]
    if params.top_p < 1:
        weights = weights_of(logits, highest, params.temperature)
        position = draw_nucleus(weights, params.top_p, params.min_p, rng)
    else:
        position = draw(logits, highest, params.temperature, params.min_p, rng)
    return position if ids is None else int(ids[position])


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
    if np.isnan(bound):
        return np.arange(values.size)
    columns = np.flatnonzero(maxima >= bound)
    rows, positions = np.nonzero(groups[:, columns] >= bound)
    return np.concatenate(
        [rows * width + columns[positions], split + np.flatnonzero(values[split:] >= bound)]
    )
