"""From logits to token ids. Exact: every filter keeps the tokens that a full sort would keep, but
finds them without sorting the vocabulary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.draws import draw, draw_nucleus, weights_of
from fastovms.engine.raw_logits import RawLogits, as_float32, likeliest
from fastovms.engine.sequence import Sequence
from fastovms.params import SamplingParams

Floats = NDArray[np.float32]
Ids = NDArray[np.intp]

GREEDY_TEMPERATURE = 1e-5
"""At and below it the likeliest token is taken: dividing by less only overflows."""

_NUM_STRIDES = 64


def takes_likeliest(sequence: Sequence) -> bool:
    """Whether nothing else is wanted of its logits than which one is the largest."""
    params = sequence.params
    return (
        params.temperature <= GREEDY_TEMPERATURE
        and params.logprobs is None
        and not sequence.processors
        and sequence.group is None
    )


def choose(raw_logits: RawLogits, likeliest_id: int, sequence: Sequence) -> int:
    """Chooses the next token of a sequence.

    Logits may be infinite: whoever calls it ignores numpy's warnings, once for all rows.

    Args:
        raw_logits: [vocab_size]. Modified, unless the request wants them as well: for log
            probabilities.
        likeliest_id: their argmax.
        sequence: if it samples, its `rng` is drawn from.
    """
    params = sequence.params
    is_greedy = params.temperature <= GREEDY_TEMPERATURE
    if is_greedy and not sequence.processors:
        return likeliest_id
    logits = as_float32(raw_logits)
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
    if is_greedy or not np.isfinite(highest):
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
