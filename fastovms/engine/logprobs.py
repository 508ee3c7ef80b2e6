"""Log probabilities of the model's raw logits: of a chosen token, and of the likeliest ones."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.draws import Wheel, weights_of
from fastovms.engine.sampler import top_k_ids
from fastovms.params import ALL_LOGPROBS, TokenLogprobs

Floats = NDArray[np.float32]


def log_sum_exp(row: Floats, highest: np.float32 | None = None) -> float:
    """What turns the logits of a row into log probabilities when it is taken from them; 0 where
    nothing is possible. `highest` is the largest of them, where that is known already."""
    highest = row.max() if highest is None else highest
    if highest == -np.inf:
        return 0.0
    return float(highest) + math.log(Wheel(weights_of(row, highest, 1)).total)


def token_logprobs(
    logits: Floats, token_id: int, num_top: int, highest: np.float32 | None = None
) -> TokenLogprobs:
    """What the raw logits, float32 [vocab_size], say about `token_id` and its `num_top`
    (or `ALL_LOGPROBS`) likeliest rivals, which come in descending order. `highest` is the largest
    of them, where that is known already."""
    normalizer = log_sum_exp(logits, highest)
    chosen = logits[token_id]
    if num_top == ALL_LOGPROBS or num_top >= logits.size:
        top = np.argsort(-logits, kind="stable")
    elif num_top == 0:
        top = np.empty(0, np.intp)
    else:
        top = top_k_ids(logits, num_top)
        top = top[np.argsort(-logits[top], kind="stable")]
    num_likelier = 0 if chosen == highest else int(np.count_nonzero(logits > chosen))
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(chosen) - normalizer,
        rank=1 + num_likelier,
        top_token_ids=top.tolist(),
        top_logprobs=(logits[top].astype(np.float64) - normalizer).tolist(),
    )
